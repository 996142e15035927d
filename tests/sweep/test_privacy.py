"""Privacy statements: the guarantee's own words, the weakest scope of a mixture, and what a sweep as a whole costs."""

import math
import re
from dataclasses import replace

import pytest

from dirdp.methods.dirichlet import Dirichlet
from dirdp.methods.nonprivate import NonPrivate
from sweep.account import Account
from sweep.campaign import Campaign
from sweep.ledger import Ledger
from sweep.plan_table import sweep_lines
from sweep.planning import plan
from sweep.privacy import UNACCOUNTED, choosing, sweep_statement, trial_statement, weakest
from sweep.results import Results, privacy_statement
from sweep.spec import SpecError, load
from sweep.storage import Folder
from sweep.store import Store

from .spaces import a_sweep, simulate

ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}
HELD_OUT = {"validation": {"fraction": 0.1}}
RANDOM = {"random_stopping": {"mean": 20, "eta": 0}}


def of(sweep, ledger=None):
    return sweep_statement(plan(sweep), ledger or Ledger())


def said(statement, name, section=0):
    return dict(statement.sections[section].rows)[name]


def run(sweep, folder, score=lambda trial, step: 0.5):
    laid_out = plan(sweep)
    account = Account(laid_out, Folder(folder), device="cpu", threads=1)
    account.know("digits", "ab" * 32)
    Results.save_sweep(Folder(folder / sweep.name), sweep)
    campaign = Campaign(laid_out, Store(Folder(folder / sweep.name)), listeners=[], account=account)
    simulate(campaign, score)
    return campaign


# The words


def test_a_statement_has_all_the_words_of_the_guarantee():
    text = of(load("figure2")).text()
    for words in vars(Dirichlet.guarantee).values():
        assert words in text
    assert "28.7722 at δ = 1e-5, nominal ε (Theorem 10), at order λ = 2" in text
    assert "1 at δ = 1e-5, T = 20000" in text


def test_no_statement_has_a_bare_epsilon_or_a_private_model():
    sweeps = [load("figure2"), a_sweep({"lr": 1, "epsilon": [1, math.inf]}), a_sweep(budget={"sweep_epsilon": 2})]
    for text in [
        *(of(sweep).text() for sweep in sweeps),
        trial_statement(plan(a_sweep()), plan(a_sweep()).trials[0], None).text(),
    ]:
        assert not re.search(r"(?<!nominal )ε(?! = ∞)", text), text
        assert "private model" not in text


def test_the_readme_has_the_same_words():
    from pathlib import Path

    import sweep

    readme = (Path(sweep.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    statement = of(load("figure2"))
    for name, words in statement.sections[1].rows:
        if name != "per trial":
            assert re.search(rf"{re.escape(name)} +{re.escape(words)}", readme), name


@pytest.mark.parametrize("size", [None, "smoke"])
def test_every_shipped_space_has_a_statement(size):
    for name in ("figure2", "quickstart", "table1"):
        if size is None or size in load(name).sizes:
            assert "sweep_epsilon_planned" in of(load(name, size=size)).text()


def test_the_weakest_scope_of_a_mixture():
    proved = replace(Dirichlet.guarantee, name="ε of DP-SGD", strength="proved", protects="inputs and labels")
    assert weakest([proved]) == "ε of DP-SGD"
    both = weakest([proved, Dirichlet.guarantee])
    assert both.startswith("nominal ε (Theorem 10) (the weakest of ε of DP-SGD, nominal ε (Theorem 10))")
    assert 'only what is common to "inputs and labels" and "inputs; labels are public"' in both
    assert weakest([proved, Dirichlet.guarantee, NonPrivate.guarantee]).startswith("no privacy (the weakest of")


# The sweep


def test_trials_without_a_mechanism_make_it_infinite_and_are_named():
    statement = of(a_sweep({"lr": [1, 2, 3, 4, 5], "epsilon": [1, math.inf]}))
    planned = said(statement, "sweep_epsilon_planned")
    assert planned.startswith("∞, no privacy") and "5 trials without a mechanism" in planned and "and 2 more" in planned
    assert {section.title for section in statement.sections} >= {"nominal ε (Theorem 10)", "no privacy"}


def test_what_a_run_has_spent(tmp_path):
    sweep = a_sweep({"lr": [1, 2, 3, 4]}, scheduler=ASHA, budget={"sweep_epsilon": 2})
    run(sweep, tmp_path, score=lambda trial, step: -trial.plan.lr)
    ledger = Ledger.read(Folder(tmp_path))
    statement = of(sweep, ledger)
    assert "ex post, no guarantee by itself" in said(statement, "sweep_epsilon_spent")
    assert "all that is started is within it" in said(statement, "budget.sweep_epsilon")
    assert "content abababababab" in statement.sections[-1].title
    spent, planned = (float(said(statement, f"sweep_epsilon_{kind}").split()[0]) for kind in ("spent", "planned"))
    assert spent < planned
    raised = of(sweep.model_copy(update={"budget": type(sweep.budget)(sweep_epsilon=3)}), ledger)
    assert "earlier runs had 2, so it holds only if" in said(raised, "budget.sweep_epsilon")


def test_totals_show_the_other_sweeps_on_the_storage(tmp_path):
    for name in ("one", "two"):
        run(a_sweep({"lr": [1, 2]}).model_copy(update={"name": name}), tmp_path)
    statement = privacy_statement("two", storage=Folder(tmp_path))
    assert said(statement, "sweeps", -1) == "one, two"
    assert said(statement, "planned", -1).endswith("whatever the results of the others were")
    assert float(said(statement, "planned", -1).split()[0]) > float(said(statement, "sweep_epsilon_planned").split()[0])


def test_a_plan_that_no_run_has_begun_is_included(tmp_path):
    run(a_sweep({"lr": [1, 2]}), tmp_path)
    ledger, wider = Ledger.read(Folder(tmp_path)), a_sweep({"lr": [1, 2]}, seeds=5)
    planned = said(of(wider, ledger), "sweep_epsilon_planned")
    assert float(planned.split()[0]) >= plan(wider).sweep_epsilon
    assert planned.endswith("it holds only if that was done whatever the results were")
    assert f"{planned.split()[0]} at δ = 1e-5" in sweep_lines(plan(wider), ledger)[0]
    assert planned.split()[0] == said(of(wider, ledger), "planned", -1).split()[0]
    assert not said(of(a_sweep({"lr": [1, 2]}), ledger), "sweep_epsilon_planned").endswith("the results were")
    assert len(ledger.plans) == 1, "only asked about"


def test_a_smaller_delta_is_that_of_every_number(tmp_path):
    run(a_sweep({"lr": [1, 2]}), tmp_path)
    ledger, smaller = Ledger.read(Folder(tmp_path)), a_sweep({"lr": [1, 2]}, trial={"delta": 1e-9})
    for text in (said(of(smaller, ledger), "sweep_epsilon_planned"), *sweep_lines(plan(smaller), ledger)[:1]):
        epsilon = float(re.search(r"([\d.]+) at δ = 1e-9", text)[1])
        assert epsilon >= plan(a_sweep({"lr": [1, 2]})).curve.epsilon(1e-9).epsilon > 1.5


@pytest.mark.parametrize("keys", [{"budget": {"sweep_epsilon": 1.01}}, {"trial": {"delta": 1e-9}}])
def test_a_budget_that_is_exceeded_already_does_not_hold(tmp_path, keys):
    sweep = {"space": {"lr": [1, 2, 3]}, "budget": {"sweep_epsilon": 1.4}}
    run(a_sweep(**sweep), tmp_path)
    ledger = Ledger.read(Folder(tmp_path))
    assert said(of(a_sweep(**sweep | keys), ledger), "budget.sweep_epsilon").endswith(
        "nothing more is started under it"
    )
    assert "exceeded" not in of(a_sweep(**sweep), ledger).text()


def test_a_budget_is_called_by_the_weakest_of_all_that_was_started(tmp_path):
    pytest.importorskip("opacus")
    run(a_sweep(budget={"sweep_epsilon": 8}), tmp_path)
    proved = a_sweep(trial={"method": "dpsgd"}, budget={"sweep_epsilon": 8})
    statement = of(proved, Ledger.read(Folder(tmp_path)))
    assert "8 at δ = 1e-5, nominal ε (Theorem 10) (the weakest of" in said(statement, "budget.sweep_epsilon")
    assert {"nominal ε (Theorem 10)", "ε (DP-SGD, Gaussian RDP)"} < {section.title for section in statement.sections}


def test_private_scores_leave_no_guarantee():
    for sweep in (a_sweep(trial=HELD_OUT), a_sweep(score_data="private")):
        assert UNACCOUNTED in said(of(sweep), "scores")
    for sweep in (a_sweep(), a_sweep(score_data="public"), a_sweep(trial={"dataset": "medmnist:dermamnist"})):
        assert UNACCOUNTED not in of(sweep).text()
    steered_by_test = {"asha": {"metric": "test_accuracy"}}
    by_test = of(a_sweep(trial=HELD_OUT, scheduler=steered_by_test))
    assert UNACCOUNTED not in by_test.text()
    assert said(by_test, "scores").endswith("neither publish them nor choose by them")
    assert said(of(a_sweep()), "scores").endswith("not under the guarantee")
    with pytest.raises(SpecError, match="score_data=public"):
        plan(a_sweep(trial=HELD_OUT, score_data="public"))


# Choosing the best


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"scheduler": ASHA}, "ASHA compares trials while they run"),
        ({}, "a fixed grid is no random search"),
        ({"budget": {"sweep_epsilon": 2}}, "the budget, not chance, ends the search"),
    ],
)
def test_why_choosing_costs_as_much_as_all(keys, why):
    assert why in choosing(plan(a_sweep(**keys)))


def test_why_a_fixed_number_of_draws_costs_as_much_as_all():
    assert "random_stopping" in choosing(plan(a_sweep({"lr": {"loguniform": [0.1, 1]}}, samples=3)))


def random_search(**keys):
    trial = {"dataset": "cifar10", "model": "resnet18", "sampling_rate": 0.005, "steps": 20000, "reports": 20}
    return a_sweep({"lr": {"loguniform": [0.1, 1]}}, trials=RANDOM, trial=trial, **keys)


@pytest.mark.parametrize(("eta", "expected"), [(0, "1.89"), (1, "2.23"), (math.inf, "2.65")])
def test_golden_of_a_random_number_of_draws(eta, expected):
    sweep = random_search()
    sweep = sweep.model_copy(update={"trials": type(sweep.trials)(random_stopping={"mean": 20, "eta": eta})})
    cost = choosing(plan(sweep))
    assert cost.startswith(expected) and "nominal ε (Theorem 10)" in cost and "MLflow server" in cost


def test_a_random_number_needs_public_scores_and_a_mechanism():
    assert UNACCOUNTED in choosing(plan(random_search(score_data="private")))
    mixed = a_sweep({"epsilon": {"choice": [1, math.inf]}, "lr": {"loguniform": [0.1, 1]}}, trials=RANDOM)
    assert "no bound" in choosing(plan(mixed))


def test_the_bound_for_the_winner_is_called_by_the_weakest_of_the_whole_space():
    pytest.importorskip("opacus")
    for seed in range(8):  # whether both methods were drawn or only one
        one_draw = a_sweep({"method": {"choice": ["dpsgd", "dirichlet"]}, "lr": 1}, trials=RANDOM, sampling_seed=seed)
        assert "nominal ε (Theorem 10) (the weakest of" in choosing(plan(one_draw.model_copy(update={"samples": 1})))


def test_a_number_of_draws_that_follows_from_a_seed_is_no_secret():
    assert "follows from sampling_seed" in choosing(plan(random_search()))
    secure = random_search()
    secure = secure.model_copy(update={"trial": secure.trial | {"randomness": "secure"}})
    assert "sampling_seed" not in choosing(plan(secure))


def test_the_loss_of_a_draw_is_the_greatest_over_the_space():
    both = a_sweep({"epsilon": {"choice": [1, 4]}, "lr": 1}, trials=RANDOM)
    four = a_sweep({"epsilon": 4, "lr": 1}, trials=RANDOM)
    assert plan(both).best_of.epsilon(1e-5).epsilon >= plan(four).best_of.epsilon(1e-5).epsilon


# One trial


def test_a_trial_keeps_its_target(tmp_path):
    sweep = a_sweep({"lr": [1, 2]})
    campaign = run(sweep, tmp_path)
    trial_id = next(iter(campaign.records))
    statement = privacy_statement("tiny", storage=Folder(tmp_path), trial=trial_id[:6])
    assert said(statement, "target") == "1 at δ = 1e-5, also if it is stopped early"
    assert said(statement, "so far").endswith("in 40 steps, completed")
    (trial,) = (one for one in plan(sweep).trials if one.id == trial_id)
    record = replace(campaign.records[trial_id], end_reason="early_stopped")
    record.reports = record.reports[:2]
    stopped = said(trial_statement(plan(sweep), trial, record), "so far")
    assert stopped.endswith("in 20 steps, early_stopped: ex post, no guarantee by itself")
    assert "choice of this trial among others" in said(statement, "not included")
    with pytest.raises(SpecError, match="2 trials of tiny have an id that begins with ''"):
        privacy_statement("tiny", storage=Folder(tmp_path), trial="")
