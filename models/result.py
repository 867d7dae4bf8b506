"""Results: written once, with the transition that ends the job."""

import sqlalchemy as sa

from models.schema import Bytes, Flag, Text, Time, metadata

results = sa.Table(
    "results", metadata,
    sa.Column("job_id", Text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),  # the attempt that held the lease
    sa.Column("body", Bytes),  # JSON
    sa.Column("blob", Text),
    sa.Column("removed", Flag, nullable=False),  # of no use since 0.2, whose retention deletes the row
    sa.Column("created_at", Time, nullable=False),
    sa.Index("ix_results_blob", "blob", sqlite_where=sa.text("blob IS NOT NULL"),
             postgresql_where=sa.text("blob IS NOT NULL")),
)
