"""The line about the clients at the end of a run."""

import pytest

from fedaux_pl.callbacks.client_results import describe_clients


@pytest.mark.parametrize("count", [5, 6])
def test_of_at_most_five_clients_all_are_named(count):
    accuracies = {f"silo{k}": k / 10 for k in range(count)}
    measured = {f"client_accuracy/{name}": value for name, value in accuracies.items()}
    measured |= {"mean_client/accuracy": 0.25, "worst_client/accuracy": 0.0}
    line = describe_clients(measured)
    if count == 5:
        each = "silo0 0.0%, silo1 10.0%, silo2 20.0%, silo3 30.0%, silo4 40.0%"
        assert line == f"accuracy by client: mean 25.0%, {each}"
    else:
        assert line == "accuracy by client: mean 25.0%, worst 0.0% (silo0), best 50.0% (silo5)"
