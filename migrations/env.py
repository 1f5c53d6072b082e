"""What Alembic runs; :mod:`tuner.store.migrate` hands over the connection and its transaction."""

from alembic import context

from tuner.store.tables import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
