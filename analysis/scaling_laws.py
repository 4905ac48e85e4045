"""How the loss of a sweep falls with parameters and tokens: a law of it, its forecast, and the best split of compute.

    python analysis/scaling_laws.py [-- --folder results/size_and_tokens]
    marimo edit analysis/scaling_laws.py

The folder is `--folder`, else $STUDY_RESULTS, else results/size_and_tokens, else results/reference/size_and_tokens.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo

    from study.base.errors import InputError
    from study.base.text import bullets, echo, escape
    from study.evidence.ledgers import LEDGER_FLOPS, LEDGER_PARAMETERS, open_ledger
    from study.evidence.sweep_laws import LEDGER_LAWS, fit_ledger
    from study.laws.approaches import frontiers
    from study.laws.forecasting import forecast_to_text
    from study.laws.reading import TableQuery
    from study.plotting import compute_optimal, forecast_against_truth, law_fit
    from study.evidence.ledgers import COUNTS
    from study.report.answer_tables import law_by_count
    from study.report.findings import run_count
    from study.report.findings import law_findings
    from study.report.notebooks import gather_ended, opened, plain, prose, refusal, scrolling_tables

    return (
        COUNTS,
        InputError,
        LEDGER_FLOPS,
        LEDGER_LAWS,
        LEDGER_PARAMETERS,
        Path,
        TableQuery,
        bullets,
        compute_optimal,
        echo,
        escape,
        fit_ledger,
        forecast_against_truth,
        forecast_to_text,
        frontiers,
        gather_ended,
        law_by_count,
        law_findings,
        law_fit,
        mo,
        open_ledger,
        opened,
        plain,
        prose,
        refusal,
        run_count,
        scrolling_tables,
    )


@app.cell
def _(Path, echo, gather_ended, law_findings, opened, run_count):
    evidence = opened(Path("results"), "size_and_tokens", gather_ended)
    laws_told = law_findings(evidence)
    echo("\n".join([f"{evidence.folder.name}: {run_count(evidence)}", *laws_told]))
    return evidence, laws_told


@app.cell
def _(bullets, escape, evidence, laws_told, mo):
    mo.md(f"# {escape(evidence.sweep.question)}\n\n{bullets(laws_told)}")
    return


@app.cell
def _(COUNTS, LEDGER_FLOPS, LEDGER_LAWS, LEDGER_PARAMETERS, evidence, mo):
    _shown, _all = evidence.laws.shown, {"all": None}
    _conditions = {where: where for where in evidence.conditions} or _all
    _names = {name: words for words, name in LEDGER_LAWS.items()}
    law = mo.ui.dropdown(
        LEDGER_LAWS, value=_names[_shown.fit.law.name if _shown else "chinchilla"], label="law", full_width=True
    )
    setting = mo.ui.dropdown(
        _conditions,
        value=_shown.query.where if _shown and _shown.query.where else next(iter(_conditions)),
        label="runs",
        full_width=True,
    )
    parameters, flops = (
        mo.ui.dropdown({COUNTS[count]: count for count in counts}, value=COUNTS[counts[0]], label=name, full_width=True)
        for name, counts in {"parameters N": LEDGER_PARAMETERS, "FLOPs C": LEDGER_FLOPS}.items()
    )
    mo.vstack([law, setting, parameters, flops])
    return flops, law, parameters, setting


@app.cell
def _(
    InputError,
    evidence,
    fit_ledger,
    flops,
    law,
    mo,
    open_ledger,
    parameters,
    refusal,
    setting,
):
    table, _refused = open_ledger(evidence.folder.path), None
    try:
        with mo.status.spinner("Fitting"):
            found = fit_ledger(table, law.value, parameters.value, flops.value, setting.value)
    except InputError as _error:
        found, _refused = None, refusal(_error)
    _refused
    return found, table


@app.cell
def _(found, law_fit, mo):
    mo.stop(found is None)
    law_fit.draw(law_fit.frame(found))
    return


@app.cell
def _(found, mo, prose):
    mo.stop(found is None)
    prose(found.to_text())
    return


@app.cell
def _(escape, forecast_to_text, found, mo):
    mo.stop(found is None)
    mo.md(f"""
    ## Forecast of the largest runs

    The law is fitted again without the runs of the largest budgets, and forecasts them. {escape(forecast_to_text(found.forecast))}
    """)
    return


@app.cell
def _(forecast_against_truth, found, mo):
    mo.stop(found is None)
    _data = forecast_against_truth.frame(found)
    "" if _data.empty else forecast_against_truth.draw(_data)
    return


@app.cell
def _(InputError, TableQuery, flops, frontiers, parameters, refusal, setting, table):
    _refused = None
    try:
        optimal = frontiers(TableQuery(table, {"parameters": parameters.value, "flops": flops.value}, where=setting.value))
    except InputError as _error:
        optimal, _refused = None, refusal(_error)
    _refused
    return (optimal,)


@app.cell
def _(mo, optimal, plain):
    mo.stop(optimal is None)
    mo.vstack(
        [
            mo.md("## The compute-optimal frontier\n\nAbove an exponent of 0.5, parameters should grow faster than tokens."),
            plain(optimal.to_text()),
        ]
    )
    return


@app.cell
def _(compute_optimal, mo, optimal):
    mo.stop(optimal is None)
    compute_optimal.draw(compute_optimal.frame(optimal))
    return


@app.cell
def _(found, law_by_count, mo, scrolling_tables):
    mo.stop(found is None)
    scrolling_tables(
        "## The law in every count\n\nA constant that moves by more than its interval belongs to the convention.\n\n"
        + (law_by_count(found) or "This law reads neither parameters nor FLOPs.")
    )
    return


if __name__ == "__main__":
    app.run()
