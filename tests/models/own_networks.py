"""Networks that tests name by their class paths."""

from torch import nn

from fedaux_pl.models import FeatureClassifier


class TinyNet(FeatureClassifier):
    """The architecture of docs/extending.md."""

    def __init__(self, num_classes, *, in_channels=3, width=32):
        super().__init__(num_classes, feature_dim=width, in_channels=in_channels)
        self.conv = nn.Conv2d(in_channels, width, 3, padding=1)

    def feature_map(self, x):
        return self.conv(x).relu()


class Plain(nn.Module):
    """A plain module, without feature_dim, forward or any check; it calls view()."""

    def __init__(self, num_classes, in_channels=3, width=8):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, width, 3, stride=2)
        self.head = nn.Linear(width, num_classes)

    def features(self, x):
        x = x.view(len(x), *x.shape[1:])
        return self.conv(x).relu().amax((2, 3))


class Wide(nn.Module):
    """A plain module with many random features."""

    def __init__(self, num_classes, in_channels=3, width=1280):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, width, 5, stride=2)
        self.head = nn.Linear(width, num_classes)

    def features(self, x):
        return self.conv(x).relu().mean((2, 3))


class NoClasses(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.head = nn.Linear(2, outputs)


class NoFeatures(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(2, num_classes)


class TenOutputs(Plain):
    def __init__(self, num_classes, in_channels=3):
        super().__init__(10, in_channels)


class_of_nothing = 3
