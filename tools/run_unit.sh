#!/bin/bash
# Run the command of docs/fedaux-site.service under the unit's limits where systemd does not run:
#   tools/run_unit.sh FILES VENV ADDRESS     as root; FILES becomes /etc/fedaux, VENV /opt/fedaux,
# ADDRESS federation.example.org. All in a mount namespace that ends with it; state: FILES/state.
set -eu
[ $# = 3 ] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
unit=$(realpath "$(dirname "$0")/../docs/fedaux-site.service")
command=$(sed -e ':a;/\\$/{N;s/\\\n//;ba}' "$unit" | sed -n 's/^ExecStart=//p')
environment=$(sed -n 's/^Environment=//p' "$unit")
export command environment
exec unshare --mount --propagation private bash -eu -s "$(realpath "$1")" "$(realpath "$2")" "$3" <<'END'
files=$1 venv=$2 base=$(readlink -f "$2/bin/python")
base=$(dirname "$(dirname "$base")")
mkdir -p "$files/state"; chown 990:990 "$files/state"
bind() { mount --bind "$1" "$2"; }
shadow=/mnt  # as all mounts, gone with the namespace
mount -t tmpfs tmpfs "$shadow"
mkdir "$shadow"/{etc,opt,lib,base,files,venv}
for name in files venv base; do bind "${!name}" "$shadow/$name"; done
cp -a /etc/. "$shadow/etc"
mkdir -p "$shadow/etc/fedaux" "$shadow/lib/fedaux" "$shadow/opt/fedaux"
echo "fedaux:x:990:990::/home/fedaux:/usr/sbin/nologin" >> "$shadow/etc/passwd"
echo "$3 federation.example.org" >> "$shadow/etc/hosts"
bind "$shadow/files" "$shadow/etc/fedaux"
mount --rbind "$shadow/etc" /etc
mount -t tmpfs -o mode=755 tmpfs /root  # the interpreter may live there; the rest of it is hidden
mkdir -p "$base"
[ "${base#/root/}" = "$base" ] || bind "$shadow/base" "$base"
mount --rbind "$shadow/opt" /opt
bind "$shadow/venv" /opt/fedaux
mount --rbind "$shadow/lib" /var/lib
bind "$files/state" /var/lib/fedaux
mount -t tmpfs -o mode=1777 tmpfs /tmp  # PrivateTmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
while read -r _ point _; do  # ProtectSystem=strict
    case $(printf %b "$point") in
        /dev*|/proc*|/sys*|/tmp|/var/tmp|/var/lib/fedaux) ;;
        *) mount -o remount,bind,ro "$(printf %b "$point")" 2>/dev/null || true ;;
    esac
done < <(tac /proc/mounts)
cd /etc/fedaux
exec env -i PATH=/usr/bin:/bin USER=fedaux $environment \
    setpriv --reuid 990 --regid 990 --clear-groups --no-new-privs $command
END
