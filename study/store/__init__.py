"""The files of runs and sweeps by name: the only modules that know what a results folder looks like on disk.

A run lies in a folder of its own, or with others in the pack of its sweep, or in part in either. `RunFolder` and `ScoreFolder`
read both: whoever reads a run goes through them, and by no path of its own.

results/<sweep>/
    sweep.yaml, cells.json      the sweep as launched, and the ids of its cells, or of a search's points so far
    runs/<run id>/
        config.yaml             written first
        metrics.jsonl           one line a logged step, during
        attempts/0001.json      one file a start of the run's process; the latest start owns the run (study.store.ownership)
        attempts/0001.record.json   the record of that start, where a person had the run tried again
        checkpoints/step-<step>-<sha256>.ckpt   kept until the run is completed
        orders.json             what its sweep asks of a run beside its configuration; nothing that moves its numbers
        prune.json              why the search that the run belongs to wants it to stop
        branch-<step>/          its state where a shorter budget leaves it, and its rows so far, until that one has them
        trunk.json              which run trained the first steps of this one, and how many, where one did
        validation_losses.npy   nats summed over the masked tokens of each validation sequence, float64
        validation_documents.npy  the document of each validation sequence, int32
        weights.safetensors     the final weights
        log.txt                 what the run's processes printed
        rank-<rank>.json        what stopped a rank that does not lead, until the next start
        record.json             written last, once, by linking a finished file into place
        exclusion.json          why a person leaves the run out of fits, where one does
        scores/<score id>/      downstream scores of the run, see study.store.score_records
    ledger.parquet, ledger.csv  rebuilt from the records
    scores.parquet, scores.csv  rebuilt from the records of downstream scores
    baselines/*.json            what downstream tasks give without an encoder; *.txt is what was printed meanwhile
    fits/*.json  figures/*.svg  answer.md
    packed/<number>/            the runs of a packed sweep in place of their folders, see study.store.packed
results/.homes/<run id>         a link to the run's folder in the sweep that trains it, for sweeps that share it
"""
