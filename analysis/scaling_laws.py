"""How the loss of a sweep falls with parameters and FLOPs: a law of it, its forecast, and what the conventions change.

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
    from study.report.exploring import with_reasons
    from study.report.findings import run_count
    from study.laws.catalogue import LAWS
    from study.laws.multiverse import explore
    from study.laws.approaches import frontiers
    from study.laws.forecasting import forecast_to_text
    from study.evidence.sweep_laws import LEDGER_LAWS, fit_ledger
    from study.evidence.ledgers import LEDGER_FLOPS, LEDGER_PARAMETERS, open_ledger
    from study.laws.reading import TableQuery, read_observations
    from study.report.law_sentences import law_findings
    from study.report.notebooks import gather_ended, opened, plain, prose, refusal, scrolling_tables
    from study.plotting import (
        answer_by_convention,
        compute_optimal,
        forecast_against_truth,
        iso_flop_valleys,
        law_fit,
        loss_against_flops,
        loss_against_parameters,
    )
    from study.plotting.style import COUNTS
    from study.report.answer_tables import law_by_count
    from study.base.text import bullets, escape

    return (
        COUNTS,
        InputError,
        LAWS,
        LEDGER_FLOPS,
        LEDGER_LAWS,
        LEDGER_PARAMETERS,
        Path,
        TableQuery,
        answer_by_convention,
        bullets,
        compute_optimal,
        escape,
        explore,
        fit_ledger,
        forecast_against_truth,
        forecast_to_text,
        frontiers,
        gather_ended,
        iso_flop_valleys,
        law_by_count,
        law_findings,
        law_fit,
        loss_against_flops,
        loss_against_parameters,
        mo,
        open_ledger,
        opened,
        plain,
        prose,
        read_observations,
        refusal,
        run_count,
        scrolling_tables,
        with_reasons,
    )


@app.cell
def _(Path, gather_ended, law_findings, opened, run_count):
    evidence = opened(Path(__file__).resolve().parents[1] / "results", "size_and_tokens", gather_ended)
    laws_told = law_findings(evidence)
    print(f"{evidence.folder.name}: {run_count(evidence)}", *laws_told, sep="\n")
    return evidence, laws_told


@app.cell
def _(escape, evidence, mo, run_count):
    mo.md(f"""
    # {escape(evidence.sweep.question)}

    {run_count(evidence)}.

    ## The ledger

    A row is a run that ended, with its size and its cost in every convention; what is *left out* of laws has its reason there.
    """)
    return


@app.cell
def _(LEDGER_FLOPS, LEDGER_PARAMETERS, evidence, mo, with_reasons):
    _names = {name: name for name in ("shape", "setting", "seed", "tokens")}
    _names |= {"recipe.learning_rate": "learning rate", "loss_nats": "loss (nats)", "order_gain_nats": "order gain (nats)"}
    _names |= {"left_out": "left out", "run_id": "run"}
    _whole = dict.fromkeys(("tokens", *LEDGER_PARAMETERS), "{:,.0f}".format)
    mo.ui.table(
        with_reasons(evidence.ledger, evidence.folder)[[*_names, *LEDGER_PARAMETERS, *LEDGER_FLOPS]]
        .rename(columns=_names)
        .fillna({"left out": ""}),
        selection=None,
        show_column_summaries=False,
        show_data_types=False,
        format_mapping=_whole
        | dict.fromkeys(LEDGER_FLOPS, "{:.3g}".format)
        | {"learning rate": "{:g}".format, "loss (nats)": "{:.4f}".format},
    )
    return


@app.cell
def _(COUNTS, LEDGER_FLOPS, LEDGER_PARAMETERS, mo):
    parameters, flops = (
        mo.ui.dropdown({COUNTS[count]: count for count in counts}, value=COUNTS[counts[0]], label=name, full_width=True)
        for name, counts in {"parameters N": LEDGER_PARAMETERS, "FLOPs C": LEDGER_FLOPS}.items()
    )
    return flops, parameters


@app.cell
def _(
    evidence,
    flops,
    loss_against_flops,
    loss_against_parameters,
    mo,
    parameters,
):
    _drawn = [
        mo.as_html(figure.draw(data))
        for figure, count in ((loss_against_parameters, parameters.value), (loss_against_flops, flops.value))
        if not (data := figure.frame(evidence, count)).empty
    ]
    mo.vstack(
        [
            mo.md(
                """
                ## Loss against parameters and FLOPs

                A point is a cell, the mean over its seeds: the further left at one height, the less it spends for that loss,
                in the convention that is chosen here and named on the axis.
                """
            ),
            parameters,
            flops,
            *_drawn,
        ]
    )
    return


@app.cell
def _(LEDGER_LAWS, evidence, mo):
    _shown, _all = evidence.laws.shown, {"all": None}
    _conditions = {where: where for where in evidence.conditions} or _all
    _names = {name: words for words, name in LEDGER_LAWS.items()}
    law = mo.ui.dropdown(
        LEDGER_LAWS,
        value=_names[_shown.fit.law.name if _shown else "chinchilla"],
        label="law",
        searchable=True,
        full_width=True,
    )
    setting = mo.ui.dropdown(
        _conditions,
        value=_shown.query.where if _shown and _shown.query.where else next(iter(_conditions)),
        label="runs",
        full_width=True,
    )
    more = mo.ui.text(placeholder="tokens == 7199744", label="and only where", full_width=True)
    return law, more, setting


@app.cell
def _(bullets, flops, law, laws_told, mo, more, parameters, setting):
    mo.vstack(
        [
            mo.md(
                """
                ## A law

                Constants say how fast the loss falls, so far as their intervals are narrow and the status is *converged*; the
                sweep's own answer says:
                """
            ),
            mo.md(bullets(laws_told)),
            law,
            setting,
            more,
            parameters,
            flops,
        ]
    )
    return


@app.cell
def _(evidence, more, open_ledger, setting):
    where = f"{setting.value} and ({more.value})" if setting.value and more.value else setting.value or more.value or None
    table = open_ledger(evidence.folder.path)
    return table, where


@app.cell
def _(
    InputError,
    fit_ledger,
    flops,
    law,
    mo,
    parameters,
    prose,
    refusal,
    table,
    where,
):
    try:
        with mo.status.spinner("Fitting, with 1,000 resamples"):
            found = fit_ledger(table, law.value, parameters.value, flops.value, where)
    except InputError as error:
        mo.stop(True, refusal(error))
    prose(found.to_text())
    return (found,)


@app.cell
def _(found, law_fit, mo):
    mo.vstack(
        [
            mo.md(
                """
                ## Residuals

                Below the law stands what it misses: residuals that bend along an axis, or lie on one side at its end, are what the
                law leaves out, and chance scatters around zero.
                """
            ),
            mo.as_html(law_fit.draw(law_fit.frame(found))),
        ]
    )
    return


@app.cell
def _(escape, forecast_against_truth, forecast_to_text, found, mo):
    _data = forecast_against_truth.frame(found)
    mo.vstack(
        [
            mo.md(
                """
                ## Forecast of the largest runs

                The law is fitted again without the runs of the largest budgets, and what it then says of them stands beside
                what they measured: only as far as this is right may it be trusted beyond all runs.
                """
            ),
            mo.md(escape(forecast_to_text(found.forecast))),
            mo.md("") if _data.empty else mo.as_html(forecast_against_truth.draw(_data)),
        ]
    )
    return


@app.cell
def _(
    InputError,
    LAWS,
    TableQuery,
    compute_optimal,
    flops,
    frontiers,
    iso_flop_valleys,
    mo,
    parameters,
    plain,
    read_observations,
    refusal,
    table,
    where,
):
    _source = TableQuery(table, {"parameters": parameters.value, "flops": flops.value}, where=where)
    try:
        _optimal = frontiers(_source)
        _valleys = iso_flop_valleys.valleys(read_observations(_source, LAWS["chinchilla"]))
        _shown = [
            plain(_optimal.to_text()),
            mo.as_html(compute_optimal.draw(compute_optimal.frame(_optimal))),
            mo.md("") if _valleys.empty else mo.as_html(iso_flop_valleys.draw(_valleys)),
        ]
    except InputError as _error:
        _shown = [refusal(_error)]
    mo.vstack(
        [
            mo.md(
                """
                ## The compute-optimal frontier

                Each approach says how the best number of parameters grows with FLOPs, as a power of them: above 0.5 parameters
                should grow faster than tokens, and approaches that disagree say how little is known.
                """
            ),
            *_shown,
        ]
    )
    return


@app.cell
def _(mo):
    mo.md("""
    ## What changes with the convention

    Here stands the law in every count, and on request how compute should be split in every convention, floor, loss and choice of
    runs: a constant that moves by more than its interval, or an answer that one choice turns, is of the convention.
    """)
    return


@app.cell
def _(found, law_by_count, scrolling_tables):
    scrolling_tables(law_by_count(found) or "This law reads neither parameters nor FLOPs.")
    return


@app.cell
def _(mo):
    ask = mo.ui.run_button(label="ask in every convention (a minute or so)")
    ask
    return (ask,)


@app.cell
def _(
    InputError,
    TableQuery,
    answer_by_convention,
    ask,
    explore,
    mo,
    plain,
    refusal,
    table,
    where,
):
    mo.stop(not ask.value)
    try:
        with mo.status.spinner("Fitting in every convention"):
            _universes = explore(TableQuery(table, where=where))
        _data = answer_by_convention.frame(_universes)
        _shown = [plain(_universes.to_text()), mo.md("") if _data.empty else mo.as_html(answer_by_convention.draw(_data))]
    except InputError as _error:
        _shown = [refusal(_error)]
    mo.vstack(_shown)
    return


if __name__ == "__main__":
    app.run()
