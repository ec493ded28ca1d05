#!/bin/bash
# A SLURM cluster of one node for docs/scaling.md, on Debian as root:
#   apt-get install --no-install-recommends slurm-wlm munge
#   tools/slurm_one_node.sh start DIR [CPUS [MAX_JOBS]]; export SLURM_CONF=DIR/slurm.conf
#   tools/slurm_one_node.sh stop DIR
# Key, socket, configuration, state and logs are in DIR: nothing of the system is changed.
set -eu
[ $# -ge 2 ] || { sed -n '2,6s/^# //p' "$0"; exit 2; }
mkdir -p "$2"
folder=$(realpath "$2") cpus=${3:-2} jobs=${4:-1000}

stop() {
    for name in slurmd slurmctld munged; do
        [ -s "$folder/$name.pid" ] || continue
        kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
        for _ in $(seq 50); do kill -0 "$(cat "$folder/$name.pid" 2>/dev/null)" 2>/dev/null || break; sleep 0.1; done
        rm -f "$folder/$name.pid"
    done
}

start() {
    mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
    chmod 700 "$folder/munge"
    (umask 077 && head -c 128 /dev/urandom > "$folder/munge/key")
    cat > "$folder/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=5
SwitchType=switch/none
KillWait=10
MaxJobCount=$jobs
MinJobAge=2
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=4000 State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    munged --force --key-file "$folder/munge/key" --socket "$folder/munge/socket" --num-threads 2 \
        --pid-file "$folder/munged.pid" --log-file "$folder/munge/log" --seed-file "$folder/munge/seed"
    export SLURM_CONF=$folder/slurm.conf
    slurmctld
    slurmd
    for _ in $(seq 100); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && exec sinfo
        sleep 0.2
    done
    tail "$folder"/*.log
    exit 1
}

"$1"
