"""All sweeps of a results folder in a browser: what they answered, where they are, and any quantity against any other.

    STUDY_RESULTS=results python analysis/serve_dashboard.py

The folder is $STUDY_RESULTS, else the results folder beside this one; one sweep's folder will do. Nothing is written.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Scaling study")


@app.cell
def _():
    import base64
    import os
    import re
    from pathlib import Path

    import marimo as mo
    import pandas as pd

    from study.shapes.accounts import Conditions, account
    from study.counting.architecture import Architecture
    from study.shapes.comparing import changes_as_text, measures, rank_changes, parse_changes
    from study.base.errors import InputError
    from study.report.exploring import LOSSES, comparable, kinds, quantities, runs_in, validations
    from study.evidence.sweep_laws import LEDGER_LAWS, fit_ledger
    from study.evidence.ledgers import LEDGER_FLOPS, LEDGER_PARAMETERS, open_ledger
    from study.store.sweep_folder import sweeps_in
    from study.shapes.naming import NamedArchitecture
    from study.report.notebooks import plain, prose, refusal, scrolling_tables
    from study.plotting import elasticities, explorer, run_curves
    from study.plotting.law_figures import FIGURES
    from study.base.quantities import plural
    from study.running.status_tables import STATES, overview, runs_table
    from study.running.status import status
    from study.base.quantities import duration

    results = Path(os.environ.get("STUDY_RESULTS") or Path(__file__).resolve().parents[1] / "results")
    return (
        Architecture,
        Conditions,
        FIGURES,
        InputError,
        LEDGER_FLOPS,
        LEDGER_LAWS,
        LEDGER_PARAMETERS,
        LOSSES,
        STATES,
        NamedArchitecture,
        account,
        base64,
        changes_as_text,
        comparable,
        duration,
        elasticities,
        explorer,
        fit_ledger,
        kinds,
        measures,
        mo,
        open_ledger,
        overview,
        pd,
        plain,
        plural,
        prose,
        quantities,
        rank_changes,
        re,
        refusal,
        results,
        run_curves,
        runs_in,
        runs_table,
        status,
        parse_changes,
        sweeps_in,
        scrolling_tables,
        validations,
    )


@app.cell
def _(mo):
    refresh = mo.ui.refresh(options=["10s", "1m", "10m"], label="read again every")
    again = mo.ui.run_button(label="read again")
    kept = {}  # what was chosen, for elements that are made anew

    def keep(name):
        return lambda value: kept.__setitem__(name, value)

    def dropdown(name, options, first, **look):
        """Options by their words; begins with what was chosen before, else with the value `first`."""
        words = {value: words for words, value in options.items()}
        value = words.get(kept.get(name), words.get(first, next(iter(options), None)))
        return mo.ui.dropdown(options, value=value, label=name, searchable=True, on_change=keep(name), **look)

    def on_page(menu):
        """A menu of full width whose words may be long: it is no wider than the page, which would scroll."""
        return menu.style(width="min(100%, 48rem)")

    return again, dropdown, keep, kept, on_page, refresh


@app.cell
def _(InputError, mo, prose, results, sweeps_in):
    def scan():
        """The sweeps that are there now, and why there is none."""
        try:
            return sweeps_in(results), {}
        except InputError as error:
            return {}, {problem.place: problem.message for problem in error.problems}

    def warning(problems):
        """What is wrong with some sweeps, nothing where nothing is."""
        lines = [f"{name}: {problem}" for name, problem in problems.items()]
        return mo.callout(prose("\n".join(lines)), kind="warn") if lines else mo.md("")

    return scan, warning


@app.cell
def _(STATES, duration, pd):
    def written(write):
        """A number as people read it, nothing where there is none; the table still sorts by the number."""
        return lambda value: "" if pd.isna(value) else write(value)

    sweep_forms = dict.fromkeys(STATES, written("{:.0f}".format))
    sweep_forms |= {"left": written(duration), "spent (train_flops)": written("{:.3g}".format)}
    _forms = {"learning rate": "{:g}", "tokens": "{:,}", "done": "{:.0%}", "loss (nats)": "{:.4f}"}
    _forms |= {"order gain (nats)": "{:.4f}", "tokens/s": "{:,.0f}", "MFU": "{:.1%}", "seconds left": "{:,.0f}"}
    run_forms = {name: written(form.format) for name, form in _forms.items()}
    return run_forms, sweep_forms


@app.cell
def _(keep, kept, mo, overview, refresh, results, scan, sweep_forms, warning):
    refresh
    current, _none = scan()
    sweeps = overview(current).set_index("sweep")
    _problems = {name: problem for name, problem in sweeps["problem"].items() if problem}
    readable = [name for name in current if isinstance(sweeps.loc[name, "question"], str)]
    _told = sweeps.loc[readable].drop(columns="problem").set_index("question", append=True)
    _shown = _told.dropna(axis="columns", how="all").reset_index()
    _running = [name for name in readable if sweeps.loc[name, "launched"] == "now"]
    _first = kept.get("sweep") if kept.get("sweep") in readable else next(iter(_running or readable), None)
    sweep_table = mo.ui.table(
        _shown,
        selection="single",
        initial_selection=[readable.index(_first)] if readable else None,
        show_column_summaries=False,
        show_data_types=False,
        format_mapping=sweep_forms,
        wrapped_columns=["question"],
        column_widths={"question": 360},
        on_change=lambda rows: keep("sweep")(rows["sweep"].iloc[0]) if len(rows) else None,
    )
    sweeps_warning = warning(_problems | _none)
    print("\n".join(f"{place}: {problem}" for place, problem in _none.items()) or f"{len(current)} sweeps in {results}")
    return current, readable, sweep_table, sweeps_warning


@app.cell
def _(
    current,
    keep,
    kept,
    mo,
    pd,
    readable,
    run_forms,
    runs_table,
    status,
    sweep_table,
):
    chosen = next((name for name in sweep_table.value["sweep"] if name in readable), None)
    sweep_runs = runs_table(status(current[chosen])) if chosen else pd.DataFrame({"run": []})
    _running = sweep_runs["run"][sweep_runs["state"] == "running"].tolist() if len(sweep_runs) else []
    _drawn = kept.get(f"runs of {chosen}", _running)

    run_table = mo.ui.table(
        sweep_runs,
        initial_selection=[place for place, run in enumerate(sweep_runs["run"]) if run in _drawn],
        page_size=20,
        show_column_summaries=False,
        show_data_types=False,
        format_mapping=run_forms,
        label="Choose runs to see their curves.",
        on_change=lambda rows: keep(f"runs of {chosen}")(rows["run"].tolist()),
    )
    return chosen, run_table, sweep_runs


@app.cell
def _(
    base64,
    chosen,
    current,
    curves_page,
    keep,
    kept,
    mo,
    plain,
    re,
    run_table,
    sweep_runs,
    scrolling_tables,
):
    def embedded(folder, text):
        """The text of an answer with its figures in it, since nothing serves their files here."""

        def data(match):
            file = folder.path / match["file"]
            image = base64.b64encode(file.read_bytes()).decode() if file.exists() else ""
            return f"![{match['caption']}](data:image/svg+xml;base64,{image})"

        return re.sub(r"!\[(?P<caption>[^\]]*)\]\((?P<file>figures/\w+\.svg)\)", data, text)

    def page(folder):
        """The answer of a sweep, its runs, and its file."""
        selected = sweep_runs[sweep_runs["run"].isin(run_table.value["run"])].assign(sweep=chosen, validation="")
        parts = (
            {"Answer": scrolling_tables(embedded(folder, folder.answer_file.read_text(encoding="utf-8", errors="replace")))}
            if folder.answer_file.exists()
            else {}
        )
        parts["Runs"] = mo.vstack([run_table, curves_page(selected, current)])
        parts["Sweep file"] = plain(folder.sweep_file.read_text(encoding="utf-8"))
        first = kept.get("part", "")
        return mo.ui.tabs(parts, value=first if first in parts else None, on_change=keep("part"))

    sweep_page = page(current[chosen]) if chosen else mo.md("Choose a sweep.")
    return (sweep_page,)


@app.cell
def _(again, keep, kept, mo, scan):
    again
    folders, _ = scan()
    explored = mo.ui.multiselect(
        options=list(folders),
        value=[name for name in kept.get("sweeps", folders) if name in folders],
        label="sweeps",
        full_width=True,
        on_change=keep("sweeps"),
    )
    return explored, folders


@app.cell
def _(explored, folders, runs_in):
    runs, unread = runs_in({name: folders[name] for name in explored.value})
    return runs, unread


@app.cell
def _(dropdown, keep, kept, mo, quantities, runs, validations):
    axes = {words: name for name, words in quantities(runs).items()}
    common = {words or "the one that all share": words for words in validations(runs)}
    x_axis = dropdown("x", axes, "train_flops")
    y_axis = dropdown("y", axes, "loss_nats")
    validation = dropdown("validated on", common, next(iter(common.values()), ""), full_width=True)
    log_x, log_y, used_only = (
        mo.ui.checkbox(kept.get(name, value), label=name, on_change=keep(name))
        for name, value in {"log x": True, "log y": False, "only runs that laws use": True}.items()
    )
    return log_x, log_y, used_only, validation, x_axis, y_axis


@app.cell
def _(comparable, dropdown, kinds, runs, validation, x_axis, y_axis):
    _rows = comparable(runs, (x_axis.value, y_axis.value), validation.value)
    colour = dropdown("colour", {name: name for name in kinds(_rows) or ["sweep"]}, "architecture.depth")
    return (colour,)


@app.cell
def _(
    LOSSES,
    colour,
    comparable,
    explorer,
    log_x,
    log_y,
    mo,
    on_page,
    prose,
    quantities,
    runs,
    unread,
    used_only,
    validation,
    warning,
    x_axis,
    y_axis,
):
    def explorer_chart():
        """The points that are asked for, or why there are none."""
        rows = comparable(runs, (x_axis.value, y_axis.value), validation.value)
        points = explorer.frame(rows, x_axis.value, y_axis.value, colour.value)
        if why := explorer.why_none_used(points) if used_only.value or points.empty else "":
            return None, f"{why} Untick “only runs that laws use” to see them." if len(points) else why
        shown = points[points["used"]] if used_only.value else points
        if why := explorer.why_none_shown(shown, log_x.value, log_y.value):
            return None, why
        words = quantities(runs)
        drawn = explorer.draw(shown, words[x_axis.value], words[y_axis.value], colour.value, log_x.value, log_y.value)
        return mo.ui.altair_chart(drawn), ""

    chart, _why = (None, "No run of these sweeps has ended yet.") if runs.empty else explorer_chart()
    _about = "Draw a box around runs to see their learning curves and rows below."
    if LOSSES.keys() & {x_axis.value, y_axis.value} and runs["validation"].nunique() > 1:
        _about += " Losses compare only on one validation set, so that one is shown; choose another beside."
    explorer_page = mo.vstack(
        [
            warning(unread),
            mo.hstack([x_axis, y_axis, colour], justify="start", wrap=True),
            on_page(validation),
            mo.hstack([log_x, log_y, used_only], justify="start"),
            mo.callout(prose(_why), kind="warn") if _why else mo.vstack([mo.md(_about), chart]),
        ]
    )
    return chart, explorer_page


@app.cell
def _(mo, run_curves):
    curve_x, curve_y = (
        mo.ui.dropdown({words: name for name, words in options.items()}, value=next(iter(options.values())), label=label)
        for label, options in {"x": run_curves.AXES, "y": run_curves.LOSSES}.items()
    )
    return curve_x, curve_y


@app.cell
def _(curve_x, curve_y, mo, plural, prose, run_curves, warning):
    def curves_page(rows, folders):
        """The learning curves of some runs, those of each validation set apart."""
        parts, apart = [], rows["validation"].nunique() > 1
        for validation, alike in rows.drop_duplicates("run").groupby("validation", sort=False):
            data, damaged = run_curves.frame(alike.head(run_curves.MOST_RUNS), folders, curve_y.value)
            drawn = f", the first {run_curves.MOST_RUNS} drawn" if len(alike) > run_curves.MOST_RUNS else ""
            words = [prose(f"validated on {validation}")] if apart else []
            parts += [mo.md(f"### {plural(len(alike), 'run')}{drawn}"), *words, warning(damaged)]
            curves = None if data.empty else run_curves.draw(data, curve_x.value, curve_y.value)
            still = {"chart_selection": False, "legend_selection": False}
            parts.append(mo.md("They logged no such loss.") if curves is None else mo.ui.altair_chart(curves, **still))
        return mo.vstack([mo.hstack([curve_x, curve_y], justify="start", wrap=True), *parts] if parts else [])

    return (curves_page,)


@app.cell
def _(chart, curves_page, folders, mo):
    def selected(rows):
        """The curves and the rows of some points."""
        told = (
            rows.drop(columns=["x", "y", "colour", "used", "validation"])
            .dropna(axis="columns", how="all")
            .reset_index(drop=True)
        )
        table = mo.ui.table(
            told,
            selection=None,
            show_data_types=False,
            show_column_summaries=False,
            format_mapping={
                "learning rate": "{:g}",
                "tokens": "{:,.0f}",
                "loss (nats)": "{:.4f}",
                "order gain (nats)": "{:.4f}",
            },
        )
        return mo.vstack([curves_page(rows, folders), table])

    selection_page = mo.md("") if chart is None or not len(chart.value) else selected(chart.value)
    return (selection_page,)


@app.cell
def _(LEDGER_FLOPS, LEDGER_LAWS, LEDGER_PARAMETERS, folders, mo):
    law_form = (
        mo.md("{sweep} {law} {parameters} {flops} {where}")
        .batch(
            sweep=mo.ui.dropdown(list(folders), value=next(iter(folders), None), label="sweep"),
            law=mo.ui.dropdown(LEDGER_LAWS, value=next(iter(LEDGER_LAWS)), label="law", searchable=True),
            parameters=mo.ui.dropdown(list(LEDGER_PARAMETERS), value="parameters", label="N"),
            flops=mo.ui.dropdown(list(LEDGER_FLOPS), value="train_flops", label="C"),
            where=mo.ui.text(placeholder="architecture.depth == 2", label="only runs where (--where)", full_width=True),
        )
        .form(submit_button_label="Fit", bordered=False)
    )
    return (law_form,)


@app.cell
def _(FIGURES, InputError, fit_ledger, folders, law_form, mo, open_ledger, prose, refusal):
    def fitted(values):
        """The fit that the form asks for, or what keeps it from being made."""
        if values["sweep"] is None:
            return mo.md("Choose a sweep.")
        folder = folders[values["sweep"]]
        if not folder.ledger_file.exists():
            return mo.md("It has no ledger yet: `study report` writes one from the records.")
        chosen = (values[name] for name in ("law", "parameters", "flops"))
        try:
            with mo.status.spinner("Fitting, with 1,000 resamples"):
                found = fit_ledger(open_ledger(folder.path), *chosen, values["where"] or None)
        except InputError as error:
            return refusal(error)
        drawn = [draw(data) for frame, draw in FIGURES.values() if not (data := frame(found)).empty]
        return mo.vstack([prose(found.to_text()), *drawn])

    _about = mo.md("A law is fitted to the ledger as `study launch` or `study report` last wrote it.")
    law_page = mo.vstack([_about, law_form, fitted(law_form.value) if law_form.value else mo.md("")])
    return (law_page,)


@app.cell
def _(mo):
    depth = mo.ui.slider(1, 48, value=12, label="depth", show_value=True, debounce=True)
    heads = mo.ui.slider(1, 32, value=12, label="heads", show_value=True, debounce=True)
    head_width = mo.ui.slider(16, 128, 16, value=64, label="head width", show_value=True, debounce=True)
    ffn_ratio = mo.ui.slider(0.5, 8, 0.5, value=4, label="FFN ratio", show_value=True, debounce=True)
    vocabulary = mo.ui.number(64, 1_000_000, step=1, value=30_522, label="vocabulary", debounce=True)
    length = mo.ui.slider(32, 512, 32, value=128, label="sequence length", show_value=True, debounce=True)
    sliders = mo.hstack([depth, heads, head_width, ffn_ratio, vocabulary, length], justify="start", wrap=True)
    return depth, ffn_ratio, head_width, heads, length, sliders, vocabulary


@app.cell
def _(
    Architecture,
    Conditions,
    NamedArchitecture,
    account,
    changes_as_text,
    depth,
    elasticities,
    ffn_ratio,
    head_width,
    heads,
    length,
    measures,
    mo,
    plain,
    rank_changes,
    sliders,
    parse_changes,
    vocabulary,
):
    _width, _pieces = heads.value * head_width.value, int(vocabulary.value or 30_522)
    _ffn = int(ffn_ratio.value * _width)
    _sizes = {
        "depth": depth.value,
        "width": _width,
        "heads": heads.value,
        "ffn": _ffn,
        "vocabulary": _pieces,
    }
    _base = Architecture.parse(_sizes)
    _changes = [f"depth={2 * depth.value}", f"width={2 * _width},ffn={2 * _ffn}", f"width={2 * _width}", f"ffn={2 * _ffn}"]
    _changes += [f"heads={2 * heads.value}", f"vocabulary={2 * _pieces}"]
    _conditions = Conditions(length.value, 32, "bf16")
    _ranked = rank_changes(_base, parse_changes(_base, _changes), measures(_conditions))
    _account = account(_base, _conditions)
    sizes_page = mo.vstack(
        [
            sliders,
            mo.md("### What doubling adds"),
            plain(changes_as_text(NamedArchitecture(_base.shape_name, _base), _ranked, "parameters", _conditions)),
            elasticities.draw(elasticities.frame(_base), _base),
            mo.md("### Where the parameters are"),
            plain(_account.to_text()),
        ]
    )
    return (sizes_page,)


@app.cell
def _(
    again,
    explored,
    explorer_page,
    keep,
    kept,
    law_page,
    mo,
    on_page,
    plain,
    refresh,
    results,
    selection_page,
    sizes_page,
    sweep_page,
    sweep_table,
    sweeps_warning,
):
    pages = {
        "Sweeps": mo.vstack([mo.hstack([refresh], justify="end"), sweeps_warning, sweep_table, sweep_page]),
        "Explore": mo.vstack([on_page(explored), again, explorer_page, selection_page]),
        "Laws": law_page,
        "Sizes": sizes_page,
    }
    _tabs = mo.ui.tabs(pages, value=kept.get("page"), on_change=keep("page"))
    mo.vstack([mo.md("# Scaling study"), plain(str(results)), _tabs])
    return


if __name__ == "__main__":
    app.run()
