"""The tables of a PostgreSQL store, the version of their format, and the function that writes a commit.

Rules
* One database serves many projects: every row names its project. All objects are in the schema `fanfold`.
* `fanfold cluster init` creates or migrates the tables in one transaction. Every other command refuses tables
  of another version and leaves them untouched.
* A commit is one call of `fanfold.commit` and one round trip. The function checks the fence, the numbers and
  the executions of sessions, and writes everything, or raises and writes nothing.
* `place` and `number` contain the id of the transaction that wrote the row. A reader stops at the oldest
  transaction that still runs. So rows never become visible out of order, although several processes write.
* Locks end with their transaction. A commit shares the lock of its tree, the locks of its sessions and the
  lock against collection. Acquiring a lease, starting an execution and collecting take them exclusively.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.store.protocol import StoreFault
from fanfold.store.tables import HEAD_NAMES, HEAD_UPDATES

if TYPE_CHECKING:
    import psycopg

VERSION = 2
SHIFT = 20
"""The bits of a place or a number below the id of its transaction."""
COLLECTION, CLAIMS = 1, 2
"""The locks of a project: (project, COLLECTION) against deleted values, (project, CLAIMS) for claims."""
LOST, SUPERSEDED, GAP, NO_TREE = "FF001", "FF002", "FF003", "FF004"
"""The error codes of `fanfold.commit`. The message is the current epoch, or the log and its last number."""
ANNOUNCEMENTS = """
CREATE TABLE fanfold.announcements (
  project integer NOT NULL,
  name text NOT NULL,
  data text NOT NULL,
  at bigint NOT NULL,
  PRIMARY KEY (project, name)
) WITH (fillfactor = 50);
"""
MIGRATIONS = {1: ANNOUNCEMENTS}
"""SQL by the format it starts from; each leads to the next format."""

TABLES = """
CREATE SCHEMA fanfold;
CREATE TABLE fanfold.about (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE fanfold.projects (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE
);
CREATE TABLE fanfold.logs (
  project integer NOT NULL REFERENCES fanfold.projects,
  log text NOT NULL,
  root_run_id text NOT NULL,
  parent_run_id text,
  depth integer NOT NULL,
  path text NOT NULL,
  created bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (project, log)
);
CREATE INDEX ON fanfold.logs (project, root_run_id);
CREATE TABLE fanfold.events (
  project integer NOT NULL,
  root text NOT NULL,
  place bigint NOT NULL,
  tree_seq integer,
  log text NOT NULL,
  session text,
  seq integer NOT NULL,
  at bigint NOT NULL,
  type text NOT NULL,
  epoch integer NOT NULL,
  path text,
  data bytea NOT NULL,
  chain bytea,
  PRIMARY KEY (project, root, place)
);
CREATE UNIQUE INDEX ON fanfold.events (project, log, seq) WHERE session IS NULL;
CREATE UNIQUE INDEX ON fanfold.events (project, session, seq) WHERE session IS NOT NULL;
CREATE TABLE fanfold.blobs (
  project integer NOT NULL,
  hash text NOT NULL,
  content bytea NOT NULL,
  PRIMARY KEY (project, hash)
);
CREATE TABLE fanfold.outputs (
  project integer NOT NULL,
  number bigint NOT NULL,
  run_id text NOT NULL,
  root_run_id text NOT NULL,
  path text NOT NULL,
  role text NOT NULL,
  status text NOT NULL,
  blob text NOT NULL,
  at bigint NOT NULL,
  PRIMARY KEY (project, number)
);
CREATE INDEX ON fanfold.outputs (project, root_run_id);
CREATE TABLE fanfold.runs (
  project integer NOT NULL,
  id bigint GENERATED ALWAYS AS IDENTITY,
  run_id text NOT NULL,
  root_run_id text NOT NULL,
  parent_run_id text,
  nesting_depth integer NOT NULL,
  execution_path text NOT NULL,
  recipe text NOT NULL,
  version integer NOT NULL,
  created_at bigint NOT NULL,
  status text NOT NULL,
  started_at bigint,
  ended_at bigint,
  inputs text,
  output text,
  error text,
  input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  micro_usd bigint,
  agents integer NOT NULL,
  forked_from text,
  PRIMARY KEY (project, run_id)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX ON fanfold.runs (project, id);
CREATE INDEX ON fanfold.runs (project, root_run_id);
CREATE TABLE fanfold.leases (
  project integer NOT NULL,
  root text NOT NULL,
  epoch integer NOT NULL,
  nonce text,
  boot_id text,
  pid integer,
  started text,
  pid_namespace text,
  machine text,
  taken_at bigint,
  heartbeat_at bigint,
  expires_at bigint,
  PRIMARY KEY (project, root)
) WITH (fillfactor = 50);
CREATE TABLE fanfold.executions (
  project integer NOT NULL,
  session text NOT NULL,
  root text NOT NULL,
  execution integer NOT NULL,
  PRIMARY KEY (project, session)
);
CREATE TABLE fanfold.requests (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  project integer NOT NULL,
  root text NOT NULL,
  run_id text NOT NULL,
  kind text NOT NULL,
  data text NOT NULL,
  at bigint NOT NULL,
  nonce text NOT NULL UNIQUE
);
CREATE INDEX ON fanfold.requests (project, root);
CREATE TABLE fanfold.claims (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  project integer NOT NULL,
  root text NOT NULL,
  run_id text NOT NULL,
  step text NOT NULL,
  patterns text NOT NULL,
  held integer NOT NULL,
  UNIQUE (project, root, run_id, step)
);
CREATE TABLE fanfold.cache (
  project integer NOT NULL,
  key text NOT NULL,
  blob text NOT NULL,
  run_id text NOT NULL,
  PRIMARY KEY (project, key)
);

CREATE FUNCTION fanfold.now_ms() RETURNS bigint VOLATILE LANGUAGE sql
  RETURN (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

CREATE FUNCTION fanfold.tree_lock(p integer, r text) RETURNS bigint IMMUTABLE LANGUAGE sql
  RETURN hashtextextended(r, p);

-- b: one batch. raw: the contents of blobs that are not text, in the order of b.raw.
CREATE FUNCTION fanfold.commit(p integer, b json, raw bytea[]) RETURNS text[] LANGUAGE plpgsql AS $body$
DECLARE
  r text := b ->> 'root';
  here bigint;
  seen integer;
  one record;
  freed text[];
BEGIN
  PERFORM pg_advisory_xact_lock_shared(p, %(collection)s);
  IF b ->> 'epoch' IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock_shared(fanfold.tree_lock(p, r));
    SELECT epoch INTO seen FROM fanfold.leases WHERE project = p AND root = r;
    IF coalesce(seen, 0) <> (b ->> 'epoch')::integer THEN
      RAISE EXCEPTION '%%', coalesce(seen, 0) USING ERRCODE = '%(lost)s';
    END IF;
  END IF;
  IF b ->> 'requires' <> '' THEN
    PERFORM 1 FROM fanfold.logs WHERE project = p AND log = b ->> 'requires';
    IF NOT FOUND THEN
      RAISE EXCEPTION '%%', b ->> 'requires' USING ERRCODE = '%(no_tree)s';
    END IF;
  END IF;
  IF b -> 'sessions' IS NOT NULL THEN
    FOR one IN SELECT * FROM json_to_recordset(b -> 'sessions')
      AS x(log text, seq integer, epoch integer)
    LOOP
      PERFORM pg_advisory_xact_lock_shared(fanfold.tree_lock(p, one.log));
      SELECT execution INTO seen FROM fanfold.executions WHERE project = p AND session = one.log;
      IF seen > one.epoch THEN
        RAISE EXCEPTION '%% %% %%', one.log, one.epoch, seen USING ERRCODE = '%(superseded)s';
      END IF;
      SELECT max(seq) INTO seen FROM fanfold.events WHERE project = p AND session = one.log;
      IF coalesce(seen, 0) + 1 <> one.seq THEN
        RAISE EXCEPTION '%% ends at %%', one.log, coalesce(seen, 0) USING ERRCODE = '%(gap)s';
      END IF;
    END LOOP;
  END IF;
  IF b -> 'started' IS NOT NULL THEN
    FOR one IN SELECT * FROM json_to_recordset(b -> 'started') AS x(session text, execution integer) LOOP
      PERFORM pg_advisory_xact_lock(fanfold.tree_lock(p, one.session));
      INSERT INTO fanfold.executions VALUES (p, one.session, r, one.execution)
        ON CONFLICT (project, session) DO UPDATE
        SET execution = greatest(fanfold.executions.execution, excluded.execution);
    END LOOP;
  END IF;
  IF b -> 'new' IS NOT NULL THEN
    INSERT INTO fanfold.logs (project, log, root_run_id, parent_run_id, depth, path)
      SELECT p, x.log, r, x.parent, x.depth, x.path
      FROM json_to_recordset(b -> 'new') AS x(log text, parent text, depth integer, path text)
      ON CONFLICT (project, log) DO NOTHING;
  END IF;
  here := pg_current_xact_id()::text::bigint << %(shift)s;
  IF b -> 'rows' IS NOT NULL THEN
    FOR one IN SELECT * FROM json_to_recordset(b -> 'logs') AS x(log text, seq integer) LOOP
      SELECT max(seq) INTO seen FROM fanfold.events WHERE project = p AND log = one.log AND session IS NULL;
      IF coalesce(seen, 0) + 1 <> one.seq THEN
        RAISE EXCEPTION '%% ends at %%', one.log, coalesce(seen, 0) USING ERRCODE = '%(gap)s';
      END IF;
    END LOOP;
    IF b ->> 'tree_seq' IS NOT NULL THEN
      SELECT tree_seq INTO seen FROM fanfold.events
        WHERE project = p AND root = r AND tree_seq IS NOT NULL ORDER BY place DESC LIMIT 1;
      IF coalesce(seen, 0) + 1 <> (b ->> 'tree_seq')::integer THEN
        RAISE EXCEPTION 'the tree of %% ends at %%', r, coalesce(seen, 0) USING ERRCODE = '%(gap)s';
      END IF;
    END IF;
    INSERT INTO fanfold.events
      SELECT p, r, here + coalesce((b ->> 'first')::integer, 0) + row_number() OVER (), x.tree_seq, x.log,
        x.session, x.seq, x.at, x.type, x.epoch, x.path, convert_to(x.data, 'UTF8'), decode(x.chain, 'hex')
      FROM json_to_recordset(b -> 'rows') AS x(
        tree_seq integer, log text, session text, seq integer, at bigint, type text, epoch integer,
        path text, data text, chain text);
  END IF;
  IF b -> 'blobs' IS NOT NULL THEN
    INSERT INTO fanfold.blobs
      SELECT p, x.hash, convert_to(x.content, 'UTF8')
      FROM json_to_recordset(b -> 'blobs') AS x(hash text, content text)
      ON CONFLICT (project, hash) DO NOTHING;
  END IF;
  IF b -> 'raw' IS NOT NULL THEN
    INSERT INTO fanfold.blobs
      SELECT p, x.hash, raw[x.n] FROM json_to_recordset(b -> 'raw') AS x(hash text, n integer)
      ON CONFLICT (project, hash) DO NOTHING;
  END IF;
  IF b -> 'outputs' IS NOT NULL THEN
    INSERT INTO fanfold.outputs
      SELECT p, here + coalesce((b ->> 'first')::integer, 0) + row_number() OVER (),
        x.run_id, x.root_run_id, x.path, coalesce(x.role, ''), coalesce(x.status, 'completed'), x.blob, x.at
      FROM json_to_recordset(b -> 'outputs') AS x(
        run_id text, root_run_id text, path text, role text, status text, blob text, at bigint);
  END IF;
  IF b -> 'heads' IS NOT NULL THEN
    INSERT INTO fanfold.runs (project, %(columns)s)
      SELECT p, %(columns)s FROM json_populate_recordset(NULL::fanfold.runs, b -> 'heads')
      ON CONFLICT (project, run_id) DO UPDATE SET %(updates)s;
  END IF;
  IF b -> 'cache' IS NOT NULL THEN
    INSERT INTO fanfold.cache SELECT p, x.key, x.blob, x.run_id
      FROM json_to_recordset(b -> 'cache') AS x(key text, blob text, run_id text)
      ON CONFLICT (project, key) DO UPDATE SET blob = excluded.blob, run_id = excluded.run_id;
  END IF;
  IF b -> 'done' IS NOT NULL THEN
    DELETE FROM fanfold.requests WHERE project = p AND root = r
      AND id IN (SELECT x::text::bigint FROM json_array_elements(b -> 'done') AS x);
  END IF;
  IF b -> 'unclaimed' IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(p, %(claims)s);
    FOR one IN SELECT * FROM json_to_recordset(b -> 'unclaimed') AS x(run_id text, step text) LOOP
      PERFORM fanfold.unclaim(p, r, one.run_id, one.step);
    END LOOP;
    SELECT array_agg(DISTINCT root) INTO freed FROM fanfold.claims
      WHERE project = p AND held = 0 AND root <> r;
  END IF;
  RETURN freed;
END $body$;

-- Release the claims of a step or, without one, of a tree. A released claim is kept while any claim is held.
CREATE FUNCTION fanfold.unclaim(p integer, r text, run text, what text) RETURNS void LANGUAGE sql AS $body$
  DELETE FROM fanfold.claims WHERE project = p AND root = r AND held = 0
    AND (run IS NULL OR (run_id = run AND step = what));
  UPDATE fanfold.claims SET held = 2 WHERE project = p AND root = r AND held = 1
    AND (run IS NULL OR (run_id = run AND step = what));
  DELETE FROM fanfold.claims WHERE project = p AND held = 2
    AND NOT EXISTS (SELECT 1 FROM fanfold.claims WHERE project = p AND held = 1);
$body$;
"""


def script() -> str:
    """Return the SQL that creates the tables and functions."""
    return (TABLES + ANNOUNCEMENTS) % {
        "collection": COLLECTION,
        "claims": CLAIMS,
        "shift": SHIFT,
        "lost": LOST,
        "superseded": SUPERSEDED,
        "gap": GAP,
        "no_tree": NO_TREE,
        "columns": ", ".join(HEAD_NAMES),
        "updates": HEAD_UPDATES,
    }


def version(db: psycopg.Connection[Any]) -> int:
    """Return the format of the tables; 0 if there are none."""
    if db.execute("SELECT to_regclass('fanfold.about')").fetchone() == (None,):
        return 0
    found = db.execute("SELECT value FROM fanfold.about WHERE name = 'format'").fetchone()
    return int(found[0]) if found is not None else 0


def require_version(found: int, place: str) -> None:
    """Raise `StoreFault` if the tables have another format than this release uses."""
    if found == VERSION:
        return
    details = {"found": found, "known": VERSION}
    if found > VERSION:
        text = f"{place} was set up by a newer Fanfold (format {found}, this one uses {VERSION})"
        raise StoreFault("store.newer", text, hint="upgrade Fanfold on this machine", details=details)
    text = f"{place} has tables of format {found}" if found else f"{place} has no tables of Fanfold"
    code = "store.older" if found else "store.no_tables"
    raise StoreFault(code, text, hint="set it up once: fanfold cluster init", details=details)


def init(db: psycopg.Connection[Any], place: str) -> tuple[int, int]:
    """Create or migrate the tables; return the format before and after. A newer format is refused."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (0x46464F4C,))
        before = version(db)
        if before > VERSION:
            require_version(before, place)
        if not before:
            db.execute(script().encode())
        for number in range(before or VERSION, VERSION):
            db.execute(MIGRATIONS[number].encode())
        db.execute(
            "INSERT INTO fanfold.about VALUES ('format', %s)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (str(VERSION),),
        )
    return before, VERSION
