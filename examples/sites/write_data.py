"""Writes private data for two sites: the digits 0 to 4, and the digits 5 to 9.

``python write_data.py`` writes hospital-a.npz and hospital-b.npz to this folder.
"""

import numpy as np

from fedaux_pl import Digits

if __name__ == "__main__":
    digits = Digits().train()
    images, labels = digits.inputs.permute(0, 2, 3, 1).numpy(), digits.targets.numpy()
    for site, own in {"hospital-a": labels < 5, "hospital-b": labels >= 5}.items():
        files = {"train_x": images[own], "train_y": labels[own], "classes": digits.classes}
        np.savez(f"{site}.npz", **files)
