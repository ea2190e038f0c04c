"""What the engine says of its drafter."""

from types import SimpleNamespace as Object

import pytest

from tabletune_engine.facts import read_facts


@pytest.mark.parametrize(
    ("config", "trained"),
    [
        pytest.param(Object(n_predict=1), 1, id="a head that predicts one token ahead"),
        pytest.param(Object(), None, id="a drafter that does not say, as EAGLE"),
        pytest.param(Object(n_predict="one"), None, id="a value that nobody can read"),
    ],
)
def test_tells_how_far_ahead_the_drafter_was_trained_to_guess(config: Object, trained: int | None) -> None:
    speculative = Object(draft_model_config=Object(hf_config=config), method="mtp")
    scheduler = Object(vllm_config=Object(speculative_config=speculative))
    assert read_facts(scheduler)["drafterTrainedLength"] == trained
