"""Load a ledger with pandas: load, select, plot, fit.

    python analysis/ledger_with_pandas.py [-- --folder results/size_and_tokens]
    marimo edit analysis/ledger_with_pandas.py

The folder is `--folder`, else $STUDY_RESULTS, else results/size_and_tokens, else results/reference/size_and_tokens.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell
def _():
    from pathlib import Path

    import marimo as mo
    import pandas as pd

    from study.api import fit
    from study.base.text import echo
    from study.report.notebooks import ledger_in, opened, prose

    return Path, echo, fit, ledger_in, mo, opened, pd, prose


@app.cell
def _(mo):
    mo.md("""
    # Load a ledger with pandas

    `ledger.parquet` (and `ledger.csv`, the same as text) has one row a run. Keys of the configuration are dotted
    (`recipe.learning_rate`), and results have their unit in the name (`loss_nats`).
    """)
    return


@app.cell
def _(Path, echo, ledger_in, opened, pd):
    file = opened(Path("results"), "size_and_tokens", ledger_in)
    ledger = pd.read_parquet(file)
    echo(f"{file.parent.name}: {len(ledger)} runs, {ledger.shape[1]} columns")
    return (ledger,)


@app.cell
def _(mo):
    mo.md("""
    ## Select

    A run with an `exclusion` is left out of every comparison, for that reason. Of each shape and budget, take the learning rate
    with the lowest mean loss over seeds.
    """)
    return


@app.cell
def _(ledger):
    used = ledger[ledger["exclusion"].isna()]
    _cell = ["shape", "target_tokens", *(name for name in ledger if name == "architecture.position_encoding")]
    means = used.groupby([*_cell, "recipe.learning_rate"], as_index=False).agg(
        loss_nats=("loss_nats", "mean"),
        seeds=("seed", "nunique"),
        parameters=("parameters", "first"),
        train_flops=("train_flops", "first"),
    )
    best = means.loc[means.groupby(_cell)["loss_nats"].idxmin()].sort_values("loss_nats")
    best.head(8).round(3)
    return (best,)


@app.cell
def _(mo):
    mo.md("""
    ## Plot
    """)
    return


@app.cell
def _(best):
    from matplotlib.figure import Figure

    _figure = Figure(figsize=(6, 3.2), dpi=100, layout="constrained")
    _axes = _figure.subplots()
    _points = _axes.scatter(best["train_flops"], best["loss_nats"], c=best["target_tokens"] / 1e6, cmap="viridis")
    _axes.set(xscale="log", xlabel="training FLOPs", ylabel="validation loss (nats)")
    _figure.colorbar(_points, label="million tokens")
    _figure
    return


@app.cell
def _(mo):
    mo.md("""
    ## Fit

    `fit` takes a table, a file or a results folder, as `study fit` does, and any columns as parameters, tokens and loss. Here it
    fits the rows of one position encoding, if there are several.
    """)
    return


@app.cell
def _(best, fit):
    _settings = best.filter(["architecture.position_encoding"])
    _one = best[_settings.eq(_settings.iloc[0]).all(axis=1)]
    law = fit(_one, "chinchilla", parameters="parameters", tokens="target_tokens", loss="loss_nats")
    return (law,)


@app.cell
def _(law, prose):
    prose(law.to_text())
    return


if __name__ == "__main__":
    app.run()
