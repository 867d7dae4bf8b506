"""The MetaData that all tables share, and their types. Times are ms since the epoch, database clock."""

import sqlalchemy as sa

metadata = sa.MetaData(naming_convention={
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
})

Text = sa.Text
Time = sa.BigInteger
Bytes = sa.LargeBinary
Flag = sa.Boolean
