"""Learn h_0 alone: what ``fedaux-pl pretrain`` runs."""

from fedaux_pl.federation import Federation
from fedaux_pl.federation.checks import check_without_rounds
from fedaux_pl.federation.pretraining import knn_accuracy


class LearnH0(Federation):
    """A federation that learns h_0 of every architecture, measures it, and runs no round.

    ``Trainer().fit(LearnH0(FedAUX(), clients={"resnet8": 10}), datamodule=data)`` leaves h_0 in the
    cache, where other runs find it, and in ``students``. ``accuracy`` is that of a kNN classifier
    on h_0, by architecture, if the private data are here.
    """

    accuracy: dict[str, float]

    def setup(self, stage: str) -> None:
        """Set up the federation, and refuse a smallest number of steps or rounds."""
        self.accuracy = {}
        check_without_rounds(self.trainer)
        super().setup(stage)

    def on_fit_start(self) -> None:
        """Learn h_0, and stop before the first round."""
        self.check_continued()
        self.start()
        self.announce_duration(has_rounds=False)
        self.learn_h0()
        if not self.data.at_sites:
            for name, h0 in self.extractors().items():
                self.accuracy[name] = knn_accuracy(self.run, h0)
        self.trainer.should_stop = True
