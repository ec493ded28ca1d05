"""What clients release about their data, and how the server turns it into certainty scores.

To add one, subclass ``Scorer``, ``FeatureMap`` or ``Calibration`` in any module, as a frozen
dataclass whose fields are its options; ``FedAUX`` takes it, in YAML by its class path. The
docstring of a scorer proves its sensitivity; ``tests/scoring/test_audit.py`` attacks every scorer
of this package.
"""

from fedaux_pl.scoring.calibration import Calibration as Calibration
from fedaux_pl.scoring.calibration import Sigmoid as Sigmoid
from fedaux_pl.scoring.calibration import Standardized as Standardized
from fedaux_pl.scoring.class_scorers import ClassCounts as ClassCounts
from fedaux_pl.scoring.class_scorers import ClassStatistics as ClassStatistics
from fedaux_pl.scoring.class_scorers import Residuals as Residuals
from fedaux_pl.scoring.class_scorers import ScoresAndHead as ScoresAndHead
from fedaux_pl.scoring.feature_maps import Centered as Centered
from fedaux_pl.scoring.feature_maps import FeatureMap as FeatureMap
from fedaux_pl.scoring.feature_maps import Identity as Identity
from fedaux_pl.scoring.feature_maps import PublicMap as PublicMap
from fedaux_pl.scoring.feature_maps import Whitened as Whitened
from fedaux_pl.scoring.ledger import Ledger as Ledger
from fedaux_pl.scoring.ledger import PrivacySpent as PrivacySpent
from fedaux_pl.scoring.release import Privacy as Privacy
from fedaux_pl.scoring.release import Release as Release
from fedaux_pl.scoring.release import ReleasedHead as ReleasedHead
from fedaux_pl.scoring.release import spent as spent
from fedaux_pl.scoring.scorers import Logistic as Logistic
from fedaux_pl.scoring.scorers import Mean as Mean
from fedaux_pl.scoring.scorers import Scorer as Scorer
from fedaux_pl.scoring.scoring import NormBound as NormBound
from fedaux_pl.scoring.scoring import Scoring as Scoring
from fedaux_pl.scoring.step import Collected as Collected
from fedaux_pl.scoring.step import Step as Step
