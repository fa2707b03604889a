"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

# Code revisions that may go on with this schema besides its own (docs/database.md): the previous one, when what this
# migration does is only added to.
serves: tuple[str, ...] = ()


def upgrade() -> None:
    ${upgrades if upgrades else 'raise NotImplementedError'}


def downgrade() -> None:
    raise NotImplementedError("Tollgate's schema only goes forward: restore a backup instead.")
