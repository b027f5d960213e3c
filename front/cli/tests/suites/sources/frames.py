"""polars: joins, groups, sorts and strings on frames of millions of rows."""

import polars as pl

ROWS = 2_000_000


def main():
    numbers = pl.int_range(ROWS, eager=True)
    left = pl.DataFrame(
        {
            "key": (numbers * 7919) % 100_003,
            "value": (numbers * 104_729) % 1_000_003,
            "text": ((numbers * 31) % 5003).cast(pl.String),
        }
    )
    right = left.group_by("key").agg(pl.col("value").sum().alias("sum"), pl.len().alias("count"))
    joined = left.join(right, on="key").sort(["sum", "value", "text", "key"])
    print(joined.shape, joined["sum"].sum(), joined["count"].max())
    texts = joined.group_by("text").agg(pl.col("value").median()).sort("text")
    print(texts.shape, texts["value"].sum(), texts["text"][1234])
    print(joined.hash_rows(seed=1).sum())
    print(joined.lazy().filter(pl.col("value") > 500_000).select(pl.col("sum").mean()).collect())


if __name__ == "__main__":
    main()
