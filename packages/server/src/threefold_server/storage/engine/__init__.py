"""The databases themselves: connections, transactions, prepared statements, the schema and row-level security.

How several statements take one round trip
==========================================

A round trip to Postgres costs more than most statements, so hot paths send several statements before they wait for the
first result. Three parts work together, with the recall as the example:

`Database.read(scope, function, pipelined=True)` (`database.py`)
    runs `function(connection)` in a database thread, inside a transaction that sets the scope of row-level security. On
    Postgres the driver is in pipeline mode meanwhile: BEGIN, the scope, and what `function` sends go out without
    waiting for answers. On SQLite `pipelined` has no effect: each statement runs when it is sent.

`Prepared.send(connection, **values)` (`prepared.py`)
    sends a statement that was compiled once and returns a function that fetches its rows. `Prepared.all` sends and
    fetches at once; `Prepared.run` sends a statement whose rows nobody needs. A pipelined transaction uses only these
    three and those of `PreparedAmong`: a statement that SQLAlchemy executes waits for its result.

`Pending[T]` (`prepared.py`)
    is the type of what `send` returns: a function without arguments that waits for the result and returns it. By
    convention every function of `storage/` named `send_*` sends now and returns a `Pending`.

The recall (`operations/recall.py`) passes `Search.run` of `memories/recall_search.py` to `Database.read`. It does:

    unindexed = turn_memories.send_unindexed(connection, self.scope)   # sent
    pending = search_queries.send_unembedded_count(connection, pool)   # sent
    citations = facts.send_citations(connection, self.scope.owner)     # sent
    candidates = self._send_pool(connection, pool)                     # sends corpus, words and vectors
    ...                                                                # the same for the shared pool
    new_turns, unread = self._unindexed_turns(unindexed())             # the first wait
    rows, corpus = candidates()                                        # these results came with the first ones

So everything that needs no earlier result is sent first, then fetched. The texts of the memories that rank highest are
read afterwards with `PreparedAmong.all`, one round trip per statement, since their keys depend on the ranking.

Two rules follow. Send everything before the first call of a `Pending`: that call waits. And call each `Pending` inside
`function`, since the connection goes back to the pool afterwards; `Database.write_at_once` alone fetches after the
commit, because it sends the commit together with the statements.

`tests/server/storage/statements/*.sql` shows the SQL of every prepared statement on either database.
"""
