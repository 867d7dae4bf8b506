"""What the state machine asks of the database, and does to it, beyond what the protocol itself does."""

from models.database import Statement

EMPTY = [Statement(f"DELETE FROM {table}") for table in (
    "jobs", "inputs", "results", "events", "deliveries", "incarnations", "leases", "lanes", "webhook_endpoints")]
PASS = Statement("UPDATE jobs SET deadline_at = deadline_at - :ms, ticketed_until = ticketed_until - :ms")
ROWS = Statement(
    "SELECT id, state, waiting, suspect, begun, attempt, crashes, crashes_alone, incarnation, error_code, "
    "CASE WHEN ticketed_until > {now} THEN 1 ELSE 0 END, CASE WHEN deadline_at <= {now} THEN 1 ELSE 0 END, "
    "deadline_at IS NULL, finished_at IS NOT NULL, priority FROM jobs ORDER BY id")
SUSPECTS = Statement("SELECT id, suspects FROM incarnations WHERE suspects IS NOT NULL")
RESULTS = Statement("SELECT job_id, attempt FROM results")
EVENTS = Statement("SELECT subject, type FROM events")
DELIVERIES = Statement("SELECT e.subject, e.type, d.url, count(*) FROM events e JOIN deliveries d "
                        "ON d.event_id = e.id GROUP BY e.id, e.subject, e.type, d.url")
LISTEN = Statement(
    "INSERT INTO webhook_endpoints (id, tenant, name, url, event_types, secrets, state, created_at, updated_at) "
    "VALUES ('whe_1', :tenant, 'n', 'http://listener.test/', '[]', '[]', 'enabled', 0, 0) "
    "ON CONFLICT (id) DO UPDATE SET state = 'enabled'")
MUTE = Statement("UPDATE webhook_endpoints SET state = 'disabled'")
# What a claim does that was sent before the end of its life and committed after it.
REVIVE = Statement("UPDATE incarnations SET ended_at = NULL WHERE id = :id")
BURY = Statement("UPDATE incarnations SET ended_at = {now} WHERE id = :id")
