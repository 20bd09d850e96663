-- A database as the first migration left it, with some of everything; kept to prove that later ones lose nothing.

BEGIN TRANSACTION;

CREATE TABLE blobs (
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  content BLOB NOT NULL
);
INSERT INTO blobs VALUES(1,'50e4616851934536c2a9ec128345f71d',CAST('"old output"' AS BLOB));

CREATE TABLE events (
  id INTEGER PRIMARY KEY,
  log INTEGER,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  type TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  data BLOB NOT NULL
);
INSERT INTO events VALUES(4294967297,NULL,1,1700000000000,'step_event',1,CAST('{"step":"gather","status":"running","attempt":1,"execution":1}' AS BLOB));
INSERT INTO events VALUES(4294967298,NULL,2,1700000000001,'step_event',1,CAST('{"step":"gather","status":"completed","attempt":1,"execution":1,"output":"50e4616851934536c2a9ec128345f71d"}' AS BLOB));
INSERT INTO events VALUES(4294967299,2,1,1700000000002,'step_event',1,CAST('{"step":"step1","status":"completed","attempt":1,"execution":1,"summary":"did it"}' AS BLOB));
INSERT INTO events VALUES(4294967300,NULL,3,1700000000003,'step_event',1,CAST('{"step":"step3","status":"completed","attempt":1,"execution":1,"summary":"did it"}' AS BLOB));
INSERT INTO events VALUES(12884901889,NULL,1,1700000000004,'session_event',1,CAST('{"kind":"input","text":"hello"}' AS BLOB));
CREATE UNIQUE INDEX events_of_children ON events (log, seq) WHERE log IS NOT NULL;

CREATE TABLE leases (
  root TEXT PRIMARY KEY,
  epoch INTEGER NOT NULL,
  boot_id TEXT,
  pid INTEGER,
  started TEXT
) WITHOUT ROWID;
INSERT INTO leases VALUES('r1',1,'boot',4711,'123');

CREATE TABLE logs (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  log TEXT NOT NULL UNIQUE,
  session INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  root_run_id TEXT NOT NULL,
  parent_run_id TEXT,
  depth INTEGER NOT NULL,
  path TEXT NOT NULL
);
INSERT INTO logs VALUES(1,'r1',0,'r1','r1',NULL,0,'');
INSERT INTO logs VALUES(2,'c1',0,'c1','r1','r1',1,'kids[0]');
INSERT INTO logs VALUES(3,'s1',1,'r1','r1',NULL,1,'');
CREATE INDEX logs_by_root ON logs (root_run_id);

CREATE TABLE outputs (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL,
  root_run_id TEXT NOT NULL,
  path TEXT NOT NULL,
  role TEXT NOT NULL,
  status TEXT NOT NULL,
  blob TEXT NOT NULL,
  at INTEGER NOT NULL
);
INSERT INTO outputs VALUES(1,'r1','r1','gather','critic','completed','50e4616851934536c2a9ec128345f71d',1700000000003);

CREATE TABLE requests (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  root TEXT NOT NULL,
  run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL,
  at INTEGER NOT NULL
);
INSERT INTO requests VALUES(1,'r1','r1','approve','{"step":"gate"}',1700000000004);
CREATE INDEX requests_by_root ON requests (root);

CREATE TABLE runs (
  id INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  root_run_id TEXT NOT NULL,
  parent_run_id TEXT REFERENCES runs (run_id) DEFERRABLE INITIALLY DEFERRED,
  nesting_depth INTEGER NOT NULL DEFAULT 0,
  execution_path TEXT NOT NULL DEFAULT '',
  recipe TEXT NOT NULL,
  version INTEGER NOT NULL,
  status TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  inputs TEXT,
  output TEXT,
  error TEXT,
  input_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  micro_usd INTEGER,
  agents INTEGER NOT NULL DEFAULT 0
);
INSERT INTO runs VALUES(1,'r1','r1',NULL,0,'','review',1,'running',1700000000000,1700000000001,NULL,NULL,NULL,NULL,0,0,12,1);
INSERT INTO runs VALUES(2,'c1','r1','r1',1,'kids[0]','inner',1,'running',1700000000002,NULL,NULL,NULL,NULL,NULL,0,0,NULL,0);
CREATE INDEX runs_by_parent ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_by_root ON runs (root_run_id);

DELETE FROM main.sqlite_sequence WHERE name='logs';
INSERT INTO main.sqlite_sequence VALUES ('logs', 3);
DELETE FROM main.sqlite_sequence WHERE name='requests';
INSERT INTO main.sqlite_sequence VALUES ('requests', 1);

pragma user_version=1;
pragma application_id=1178684998;

COMMIT TRANSACTION;
