"""The caller's own unique index or constraint as the guard: is it fit for it, and was it this one that was violated?

Looked at live, once per process and database. What a partial, deferred or not yet valid index rejects is not
"the same operation again", so such an index is refused.
"""

from __future__ import annotations

import re

from claimant._model.errors import Refused
from claimant._model.guarding import Diagnosis, Execute, Reply, Trouble
from claimant._model.ops import Flow
from claimant._model.record import record

_POSTGRES = """SELECT n.nspname::text, t.relname::text, i.indisunique, i.indisvalid AND i.indisready, i.indpred IS NOT NULL,
    i.indimmediate, t.relpersistence::text, x.relkind::text,
    (SELECT string_agg(a.attname::text, ', ') FROM pg_attribute a
      WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)
  FROM pg_class x JOIN pg_index i ON i.indexrelid = x.oid JOIN pg_class t ON t.oid = i.indrelid
  JOIN pg_namespace n ON n.oid = x.relnamespace
  WHERE x.relname = ? AND CASE WHEN ? = '' THEN pg_table_is_visible(x.oid) ELSE n.nspname = ? END"""

_HOW = "Name a plain unique index on what makes the operation the same, e.g. CREATE UNIQUE INDEX one_debit ON debits (order_id)"


@record
class Constraint:
    """A verified constraint. `names`: what the database says of its violation."""

    names: tuple[str, ...]
    nullable: str = ""
    """Columns that may be NULL, where two NULLs do not violate it."""

    def violated(self, found: Diagnosis) -> bool:
        """Whether this very constraint was violated."""
        if found.trouble is not Trouble.UNIQUE:
            return False
        if len(found.violated) == len(self.names) and found.violated == self.names:
            return True
        # Drivers that give the constraint's name alone.
        return (
            len(found.violated) == 3
            and found.violated[:2] == ("", "")
            and found.violated[2] == self.names[-1]
        )


def in_postgres(declared: str) -> Flow[Constraint]:
    """The unique index `declared` ("name" or "schema.name"). Raises `Refused` (CLM049)."""
    schema, _, name = declared.rpartition(".")
    reply: Reply = yield Execute(_POSTGRES, (name, schema, schema))
    if not reply.rows:
        raise _unfit(
            declared,
            "there is no index or constraint of that name in this database (names are case-sensitive here)",
        )
    [(found_schema, table, unique, valid, partial, immediate, persistence, kind, nullable), *_] = reply.rows
    if kind == "I":
        raise _unfit(
            declared, "it is on a partitioned table, whose violations carry the names of its partitions"
        )
    if not unique:
        raise _unfit(declared, "it is not unique")
    if not valid:
        raise _unfit(declared, "it is not valid (a CREATE INDEX CONCURRENTLY that failed?)")
    if partial:
        raise _unfit(declared, "it is partial: rows outside its WHERE are let through twice")
    if not immediate:
        raise _unfit(declared, "it is deferrable: it may be violated until the COMMIT")
    if persistence != "p":
        raise Refused(
            "CLM041",
            f"constraint={declared!r} is on an unlogged or temporary table: a crash empties it. {_HOW}",
        )
    return Constraint((found_schema, table, name), nullable or "")


def in_sqlite(declared: str) -> Flow[Constraint]:
    """The unique index, or the named UNIQUE or PRIMARY KEY of a CREATE TABLE. Raises `Refused` (CLM049)."""
    name = declared.rpartition(".")[2]
    reply: Reply = yield Execute(
        "SELECT tbl_name FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)
    )
    if reply.rows:
        table = str(reply.rows[0][0])
        yield from _refuse_conflict_clause(declared, table)
        listed: Reply = yield Execute(
            'SELECT "unique", partial FROM pragma_index_list(?) WHERE name = ?', (table, name)
        )
        [(unique, partial)] = listed.rows
        if not unique:
            raise _unfit(declared, "it is not unique")
        if partial:
            raise _unfit(declared, "it is partial: rows outside its WHERE are let through twice")
        columns: Reply = yield Execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,))
        names = [row[0] for row in columns.rows]
        if None in names:
            return Constraint((f"index '{name}'",))
        return (yield from _on_columns(table, [str(each) for each in names]))
    tables: Reply = yield Execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND instr(sql, ?) > 0", (name,)
    )
    quoted = rf"[\"`\[]?{re.escape(name)}[\"`\]]?"
    for table, sql in tables.rows:
        found = re.search(
            rf"CONSTRAINT\s+{quoted}\s+(?:UNIQUE|PRIMARY\s+KEY)\s*\(([^)]*)\)", sql, re.IGNORECASE
        )
        if found:
            yield from _refuse_conflict_clause(declared, table)
            columns_of = [column.strip().split()[0].strip('"`[]') for column in found[1].split(",")]
            # The text may be a comment or a default; what SQLite enforces is in its own lists.
            if (yield from _enforced(table, columns_of)):
                return (yield from _on_columns(table, columns_of))
    raise _unfit(declared, "there is no index or table constraint of that name in this database")


def _enforced(table: str, columns: list[str]) -> Flow[bool]:
    """Whether SQLite rejects a second row with these values: by an index of its own, or by the rowid."""
    wanted = sorted(column.lower() for column in columns)
    keys: Reply = yield Execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0", (table,))
    if sorted(str(row[0]).lower() for row in keys.rows) == wanted:
        return True
    lists: Reply = yield Execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (table,)
    )
    for (index,) in lists.rows:
        found: Reply = yield Execute("SELECT name FROM pragma_index_info(?)", (index,))
        if sorted(str(row[0]).lower() for row in found.rows) == wanted:
            return True
    return False


def _on_columns(table: str, columns: list[str]) -> Flow[Constraint]:
    info: Reply = yield Execute('SELECT name, "notnull", pk FROM pragma_table_info(?)', (table,))
    spelled = {str(name).lower(): (str(name), bool(strict or pk)) for name, strict, pk in info.rows}
    known = [spelled.get(column.lower(), (column, True)) for column in columns]
    nullable = ", ".join(name for name, strict in known if not strict)
    return Constraint(tuple(f"{table}.{name}" for name, _ in known), nullable)


def _refuse_conflict_clause(declared: str, table: str) -> Flow[None]:
    reply: Reply = yield Execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    clause = re.search(
        r"ON\s+CONFLICT\s+(IGNORE|REPLACE|ROLLBACK)",
        str(reply.rows[0][0]) if reply.rows else "",
        re.IGNORECASE,
    )
    if clause:
        raise _unfit(
            declared, f"its table says ON CONFLICT {clause[1].upper()}: the second row would not be rejected"
        )


def _unfit(declared: str, why: str) -> Refused:
    return Refused("CLM049", f"constraint={declared!r} cannot be the guard: {why}. {_HOW}")
