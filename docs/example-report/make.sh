#!/bin/sh
# The example report beside this file, from real runs: `make example-report CATALOG=catalogs/amazon-2023`.
#
# CATALOG: folder with the Parquet files of Amazon Reviews 2023 metadata (docs/example-report/README.md). WORK: where runs
# and benchmark go; what is there is gone on with, so that an interrupted call is simply repeated. About 25 minutes on
# two quiet cores; nothing else should run, or the report tells of that too.
set -eu
catalog=${1:?the folder of the catalog is missing}
work=${WORK:-out/example-report}
here=$(dirname "$0")
config=conf/amazon-2023.yaml
# Small units, so that a few minutes measure many: the interval is over units, and below 30 there is none.
units=units.rows=16
# What the last step needs is missed now, and not after 25 minutes.
python "$here/screenshot.py"
mkdir -p "$work"

# What the catalog holds: its lengths, from random rows of all files.
hpd plan --config "$config" --input "$catalog" --output "$work/unused" --rows 2000 --json > "$work/plan.json"

# Three runs, each a random sample over all files: below three, nobody knows how far one run is from the next.
for seed in 1 2 3; do
  hpd extract --config "$config" --set "$units" --input "$catalog" --output "$work/run-$seed" --sample-units 20 --seed "$seed"
done

# The other ways, on rows of the same catalog with the same weights.
if [ ! -e "$work/benchmark/benchmark.json" ]; then
  hpd benchmark --config "$config" --input "$catalog" --output "$work/benchmark" --limit 16 --repeat 3 --threads 2 \
    --skip ar-present --skip per-attribute --skip per-attribute-continuous
fi

hpd report "$work/run-1" "$work/run-2" "$work/run-3" --documents 500e6 --plan "$work/plan.json" \
  --compare "$work/benchmark/benchmark.json" --output "$here"
python "$here/screenshot.py" "$here/report.html" "$here/report.png"
