"""The server's models."""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedaux_pl.engine import SeedPurpose, evaluating, isolated_rng
from fedaux_pl.errors import ConfigurationError
from fedaux_pl.functional import derive_seed
from fedaux_pl.functional.averaging import State
from fedaux_pl.models import complete_options, create_for, load_backbone, options_of, state_key
from fedaux_pl.modules.batch_checks import check_inputs
from fedaux_pl.modules.state_dicts import copy_state


class Students(nn.ModuleDict):
    """One model of each architecture, by its name; none until ``create``.

    Names may have dots, as class paths do; the state dict has colons there.
    """

    def __init__(self, names: Iterable[str], model_options: Mapping[str, Any], seed: int) -> None:
        super().__init__()
        self.names = tuple(names)
        self.model_options = model_options
        self.seed = seed

    def __getitem__(self, name: str) -> nn.Module:
        return super().__getitem__(state_key(name))

    def __setitem__(self, name: str, module: nn.Module) -> None:
        super().__setitem__(state_key(name), module)

    def __contains__(self, name: str) -> bool:
        return super().__contains__(state_key(name))

    def __iter__(self) -> Iterator[str]:
        return (key.replace(":", ".") for key in self._modules)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return dict(self.items()).keys()

    def items(self) -> ItemsView[str, nn.Module]:
        """Return the names with their modules."""
        return dict(zip(self, self.values(), strict=True)).items()

    def create(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        pretrained: bool,
        backbone_seed: int | None = None,
    ) -> None:
        """Create the models, ``pretrained`` from weights that come with them, if there are any.

        ``backbone_seed`` seeds the weights of h in place of the run's seed.
        """
        for number, name in enumerate(self.names):
            options = {"pretrained": pretrained, **self.options_of(name)}
            with isolated_rng(derive_seed(self.seed, SeedPurpose.INITIALIZATION, number)):
                self[name] = create_for(input_shape, name, num_classes, **options)
            if backbone_seed is not None:
                with isolated_rng(derive_seed(backbone_seed, SeedPurpose.INITIALIZATION)):
                    start = create_for(input_shape, name, 1, **options)  # whatever the classes are
                load_backbone(self[name], start.state_dict())

    def states(self) -> dict[str, State]:
        """Return copies of the models' weights and buffers, by architecture."""
        return {name: copy_state(model) for name, model in self.items()}

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of an architecture."""
        return options_of(name, self.names, self.model_options)

    def complete_options(self) -> dict[str, dict[str, Any]]:
        """Return the options of every architecture, with defaults, as keys of caches have them."""
        return {name: complete_options(name, **self.options_of(name)) for name in self}

    def forward(self, x: Tensor) -> Tensor:
        """Return class probabilities of the ensemble of all students, shape (N, C)."""
        if not self:
            raise ConfigurationError(
                "this federation has no models yet: fit it, or load one with "
                "Federation.load_from_checkpoint(path)"
            )
        self.check_inputs(x)
        logits = [model(x).float() for model in self.values()]
        return torch.stack(logits).mean(dim=0).softmax(dim=-1)

    def check_inputs(self, x: Tensor) -> None:
        """Raise a ValueError if a model cannot read the inputs."""
        for model in self.values():
            check_inputs(model, x)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return the logits of each student in evaluation mode, shape (S, N, C)."""
        logits = []
        for model in self.values():
            with evaluating(model):
                logits.append(model(x).float())
        return torch.stack(logits)
