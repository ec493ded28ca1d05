"""Modules by the names of architectures, which may be class paths."""

from collections.abc import ItemsView, Iterator, KeysView

from torch import nn

from fedaux_pl.models import state_key


class ModulesByName(nn.ModuleDict):
    """A ModuleDict whose keys may have dots, as class paths do; its state dict has colons there."""

    def __getitem__(self, name: str) -> nn.Module:
        return super().__getitem__(state_key(name))

    def __setitem__(self, name: str, module: nn.Module) -> None:
        super().__setitem__(state_key(name), module)

    def __contains__(self, name: str) -> bool:
        return super().__contains__(state_key(name))

    def __iter__(self) -> Iterator[str]:
        return (key.replace(":", ".") for key in self._modules)

    def keys(self) -> KeysView[str]:
        """The names."""
        return dict(self.items()).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        """The names with their modules."""
        return dict(zip(self, self.values(), strict=True)).items()
