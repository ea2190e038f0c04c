"""The plugin with a drafter that drafts only when it finds something."""

from live_engine import NGRAM, WORKER_PROCESS, Account, Launcher, prompts


def test_coverage_is_counted_and_timing_drafts_in_every_step(launcher: Launcher) -> None:
    engine = launcher.use(NGRAM, WORKER_PROCESS)
    asked = prompts(3, seed=1, words=60)
    change, replies = engine.counted(lambda: engine.complete_together(asked))
    account = Account.of(replies)
    assert {name: change[name] for name in vars(account)} == vars(account)
    assert 0 < change["draftedSteps"] < change["requestSteps"]

    for k in (1, 2, 3):
        engine.plugin.ask("force", draftLength=k, reject=True)
        change, rejected = engine.counted(lambda: engine.complete_together(asked))
        assert change["kept"] == [0, 0, 0]
        assert change["draftedSteps"] == change["requestSteps"] == 3 * 47
        assert change["drafted"] == [3 * 47] * k + [0] * (3 - k)
        assert [reply.text for reply in rejected] == [reply.text for reply in replies]

    engine.plugin.ask("force", draftLength=None, reject=False)
    change, _ = engine.counted(lambda: engine.complete_together(asked))
    assert 0 < change["draftedSteps"] < change["requestSteps"]
