-- storage.engine.database._SET_SCOPE
SELECT set_config(:set_config_2, :owner, :set_config_3) AS set_config_1, set_config(:set_config_5, :system, :set_config_6) AS set_config_4, set_config(:set_config_8, :plans, :set_config_9) AS set_config_7;

-- storage.engine.store_secrets._VALUE
SELECT store.value 
FROM store 
WHERE store.name = :name;

-- storage.erasure.erased_ids._ANY_ERASED
SELECT erased_turns.until 
FROM erased_turns 
WHERE erased_turns.owner = :owner
 LIMIT :param_1 OFFSET :param_2;

-- storage.erasure.erased_ids._ERASED
SELECT erased_turns.turn 
FROM erased_turns 
WHERE erased_turns.owner = :owner AND erased_turns.until > :now AND erased_turns.turn = :value_0;

-- storage.memories.facts._CITED
SELECT fact_sources.fact, facts.valid_from, facts.valid_to, fact_sources.session, fact_sources.from_seq, fact_sources.upto_seq 
FROM fact_sources JOIN facts ON fact_sources.owner = facts.owner AND fact_sources.fact = facts.fact 
WHERE fact_sources.owner = :owner;

-- storage.memories.facts._HISTORY
SELECT facts.owner, facts.fact, facts.root, facts.agent, facts.session, facts.session_id, facts.visibility, facts.shared, facts.writer, facts.text, facts.origin, facts.extracted_by, facts.trust, facts.metadata, facts.created_at, facts.event_at, facts.valid_from, facts.valid_to, facts.superseded_by, facts.expires_at, facts.extended, facts.pinned, facts.access_count 
FROM facts 
WHERE facts.owner = :owner AND (coalesce(facts.agent = :agent, 0) = 1 AND facts.session = :session OR coalesce(facts.agent = :agent, 0) = 1 AND facts.visibility >= :agent_floor OR facts.visibility >= :user_floor) AND facts.valid_from <= :at AND facts.valid_to > :at ORDER BY facts.valid_from DESC
 LIMIT :param_1 OFFSET :param_2;

-- storage.memories.facts._OWN
SELECT facts.owner, facts.fact, facts.root, facts.agent, facts.session, facts.session_id, facts.visibility, facts.shared, facts.writer, facts.text, facts.origin, facts.extracted_by, facts.trust, facts.metadata, facts.created_at, facts.event_at, facts.valid_from, facts.valid_to, facts.superseded_by, facts.expires_at, facts.extended, facts.pinned, facts.access_count 
FROM facts 
WHERE facts.valid_to IS NULL AND facts.owner = :owner AND facts.fact = :value_0;

-- storage.memories.facts._SHARED
SELECT facts.owner, facts.fact, facts.root, facts.agent, facts.session, facts.session_id, facts.visibility, facts.shared, facts.writer, facts.text, facts.origin, facts.extracted_by, facts.trust, facts.metadata, facts.created_at, facts.event_at, facts.valid_from, facts.valid_to, facts.superseded_by, facts.expires_at, facts.extended, facts.pinned, facts.access_count 
FROM facts 
WHERE facts.valid_to IS NULL AND facts.shared = 1 AND facts.fact = :value_0;

-- storage.memories.facts._SOURCES
SELECT fact_sources.fact, sessions.session_id, fact_sources.from_seq, fact_sources.upto_seq 
FROM fact_sources JOIN sessions ON fact_sources.owner = sessions.owner AND fact_sources.session = sessions.session 
WHERE fact_sources.owner = :value_0 AND fact_sources.fact = :value_1 ORDER BY fact_sources.fact, sessions.session_id, fact_sources.from_seq;

-- storage.memories.index._ADD_PASSAGE
INSERT INTO passages (pool, source, seq, part, owner, agent, session, visibility, speaker, length, event_at, trust, expires_at, rev, terms) VALUES (:pool, :source, :seq, :part, :owner, :agent, :session, :visibility, :speaker, :length, :event_at, :trust, :expires_at, :rev, :terms);

-- storage.memories.index._ADD_POSTING
INSERT INTO postings (pool, term, source, seq, part, owner, tf) VALUES (:pool, :term, :source, :seq, :part, :owner, :tf);

-- storage.memories.index._SET_VECTOR
UPDATE passages SET embedder=:stamp, vector=:values, rev=:raised WHERE passages.pool = :key_pool AND passages.source = :key_source AND passages.seq = :key_seq AND passages.part = :key_part;

-- storage.memories.owner_index._REVISION
SELECT owners.index_rev, owners.index_cut, owners.erase_epoch, owners.facts_rev, owners.created_at 
FROM owners 
WHERE owners.owner = :owner;

-- storage.memories.owner_index._ROWS
SELECT passages.source, passages.seq, passages.part, passages.agent, passages.session, passages.visibility, passages.speaker, passages.length, passages.event_at, passages.trust, passages.expires_at, passages.embedder, passages.vector, passages.terms 
FROM passages 
WHERE passages.pool = :owner AND passages.rev > :after;

-- storage.memories.owner_index._KEYS
SELECT passages.source, passages.seq, passages.part 
FROM passages 
WHERE passages.pool = :owner;

-- storage.memories.owner_index._COUNT
SELECT count(*) AS count_1 
FROM passages 
WHERE passages.pool = :owner;

-- storage.memories.search_queries._CORPUS
SELECT count(*) AS count_1, coalesce(avg(passages.length), :coalesce_2) AS coalesce_1 
FROM passages 
WHERE passages.pool = :pool;

-- storage.memories.search_queries._LEXICAL[False]
WITH hits AS MATERIALIZED 
(SELECT postings.pool AS pool, postings.term AS term, postings.source AS source, postings.seq AS seq, postings.part AS part, postings.owner AS owner, postings.tf AS tf 
FROM postings 
WHERE postings.pool = :pool AND postings.term IN (SELECT anon_2.value 
FROM json_each(:terms) AS anon_2))
 SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, hits.term, hits.tf, NULL AS anon_1, passages.embedder IS NULL AS pending 
FROM hits JOIN passages ON hits.pool = passages.pool AND hits.source = passages.source AND hits.seq = passages.seq AND hits.part = passages.part 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.owner = :owner AND (coalesce(passages.agent = :agent, 0) = 1 AND passages.session = :session OR coalesce(passages.agent = :agent, 0) = 1 AND passages.visibility >= :agent_floor OR passages.visibility >= :user_floor);

-- storage.memories.search_queries._LEXICAL[True]
WITH hits AS MATERIALIZED 
(SELECT postings.pool AS pool, postings.term AS term, postings.source AS source, postings.seq AS seq, postings.part AS part, postings.owner AS owner, postings.tf AS tf 
FROM postings 
WHERE postings.pool = :pool AND postings.term IN (SELECT anon_2.value 
FROM json_each(:terms) AS anon_2))
 SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, hits.term, hits.tf, NULL AS anon_1, passages.embedder IS NULL AS pending 
FROM hits JOIN passages ON hits.pool = passages.pool AND hits.source = passages.source AND hits.seq = passages.seq AND hits.part = passages.part 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until;

-- storage.memories.search_queries._NEAREST[False]
SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, NULL AS anon_1, :param_1 AS anon_2, -(passages.vector <#> :query) AS cosine, 0 AS anon_3 
FROM passages 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.owner = :owner AND (coalesce(passages.agent = :agent, 0) = 1 AND passages.session = :session OR coalesce(passages.agent = :agent, 0) = 1 AND passages.visibility >= :agent_floor OR passages.visibility >= :user_floor) AND passages.embedder = :embedder ORDER BY passages.vector <#> :query
 LIMIT :param_2 OFFSET :param_3;

-- storage.memories.search_queries._NEAREST[True]
SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, NULL AS anon_1, :param_1 AS anon_2, -(passages.vector <#> :query) AS cosine, 0 AS anon_3 
FROM passages 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.embedder = :embedder ORDER BY passages.vector <#> :query
 LIMIT :param_2 OFFSET :param_3;

-- storage.memories.search_queries._VECTORS[False]
SELECT passages.vector AS vector, passages.source AS source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length 
FROM passages 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.owner = :owner AND (coalesce(passages.agent = :agent, 0) = 1 AND passages.session = :session OR coalesce(passages.agent = :agent, 0) = 1 AND passages.visibility >= :agent_floor OR passages.visibility >= :user_floor) AND passages.embedder = :embedder;

-- storage.memories.search_queries._VECTORS[True]
SELECT passages.vector AS vector, passages.source AS source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length 
FROM passages 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.embedder = :embedder;

-- storage.memories.search_queries._UNEMBEDDED[False]
SELECT count(*) AS count_1 
FROM (SELECT DISTINCT passages.source AS source, passages.seq AS seq 
FROM passages 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.owner = :owner AND (coalesce(passages.agent = :agent, 0) = 1 AND passages.session = :session OR coalesce(passages.agent = :agent, 0) = 1 AND passages.visibility >= :agent_floor OR passages.visibility >= :user_floor) AND passages.embedder IS NULL) AS anon_1;

-- storage.memories.search_queries._UNEMBEDDED[True]
SELECT count(*) AS count_1 
FROM (SELECT DISTINCT passages.source AS source, passages.seq AS seq 
FROM passages 
WHERE passages.pool = :pool AND (passages.expires_at IS NULL OR passages.expires_at > :now) AND passages.trust >= :min_trust AND passages.event_at <= :until AND passages.embedder IS NULL) AS anon_1;

-- storage.memories.turn_memories._BY_KEYS
SELECT turns.owner, turns.session, turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.event_at, turns.noted_by, CASE WHEN (length(turns.content) <= :length_1) THEN turns.content ELSE substr(turns.content, :substr_1, :substr_2) END AS content, CASE WHEN (length(turns.content) > :length_2) THEN substr(turns.content, (length(turns.content) - :length_3) + :param_1) END AS content_tail, length(turns.content) AS content_size, sessions.agent, sessions.session_id 
FROM turns JOIN sessions ON turns.owner = sessions.owner AND turns.session = sessions.session 
WHERE turns.erased IS 0 AND turns.role != :role_1 AND turns.owner = :owner AND (coalesce(sessions.agent = :agent, 0) = 1 AND turns.session = :session OR coalesce(sessions.agent = :agent, 0) = 1 AND turns.visibility >= :agent_floor OR turns.visibility >= :user_floor) AND turns.session = :value_0 AND turns.seq = :value_1;

-- storage.memories.turn_memories._CONTENT
SELECT CASE WHEN (length(turns.content) <= :most) THEN turns.content END AS anon_1 
FROM turns 
WHERE turns.owner = :owner AND turns.session = :session AND turns.seq = :seq;

-- storage.memories.turn_memories._UNINDEXED
SELECT turns.owner, turns.session, turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.event_at, turns.noted_by, NULL AS content 
FROM turns JOIN sessions ON turns.owner = sessions.owner AND turns.session = sessions.session JOIN tasks ON tasks.owner = turns.owner AND tasks.subject = turns.session 
WHERE turns.erased IS 0 AND turns.role != :role_1 AND turns.owner = :owner AND (coalesce(sessions.agent = :agent, 0) = 1 AND turns.session = :session OR coalesce(sessions.agent = :agent, 0) = 1 AND turns.visibility >= :agent_floor OR turns.visibility >= :user_floor) AND (tasks.kind || :kind_1) = :param_1 AND (tasks.due_at IS NOT NULL OR tasks.parked IS NOT NULL) AND turns.seq > tasks.upto ORDER BY turns.event_at DESC, turns.seq DESC
 LIMIT :param_2 OFFSET :param_3;

-- storage.sessions.append._LOCK
SELECT set_config(:set_config_2, :set_config_3, :set_config_4) AS set_config_1 
FROM sessions 
WHERE sessions.owner = :own AND sessions.session = :which;

-- storage.sessions.append._APPEND
WITH found AS 
(SELECT sessions.last_seq AS last_seq, sessions.revision AS revision, sessions.tokens AS tokens, sessions.digested_tokens AS digested_tokens 
FROM sessions 
WHERE sessions.owner = :own AND sessions.session = :which AND current_setting(:current_setting_1, :current_setting_2) = :current_setting_3 AND (EXISTS (SELECT * 
FROM owners 
WHERE owners.owner = :own AND owners.name != :name_1)) AND NOT (EXISTS (SELECT * 
FROM unnest(:ids) AS anon_4(id) 
WHERE (SELECT 1 AS anon_5 
FROM turns 
WHERE turns.owner = :own AND turns.session = :which AND turns.turn_id = anon_4.id))) AND NOT (EXISTS (SELECT * 
FROM erased_turns 
WHERE erased_turns.owner = :own))), 
change_0 AS 
(INSERT INTO turns (seq, turn_id, role, name, kind, turn_group, content, payload, tokens, visibility, created_at, utc_offset, event_at, noted_by, owner, session) SELECT found.last_seq + given.seq AS anon_1, given.turn_id AS turn_id, given.role AS role, given.name AS name, given.kind AS kind, given.turn_group AS turn_group, given.content AS content, given.payload AS payload, given.tokens AS tokens, given.visibility AS visibility, given.created_at AS created_at, given.utc_offset AS utc_offset, given.event_at AS event_at, given.noted_by AS noted_by, :own AS anon_2, :which AS anon_3 
FROM found JOIN json_to_recordset(:rows) AS given(seq INTEGER, turn_id TEXT, role TEXT, name TEXT, kind TEXT, turn_group TEXT, content TEXT, payload TEXT, tokens INTEGER, visibility SMALLINT, created_at BIGINT, utc_offset SMALLINT, event_at BIGINT, noted_by TEXT) ON 1 = 1), 
change_1 AS 
(UPDATE sessions SET last_seq=(sessions.last_seq + :more_turns), turns=(sessions.turns + :more_turns), tokens=(sessions.tokens + :more_tokens), revision=(sessions.revision + :revision_1), updated_at=:now WHERE sessions.owner = :own AND sessions.session = :which AND (EXISTS (SELECT * 
FROM found))), 
change_2 AS 
(INSERT INTO tasks (owner, subject, kind, due_at) SELECT :own AS anon_2, :which AS anon_3, :param_1 AS anon_6, :now AS anon_7 
FROM found ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.failure IS NULL AND tasks.due_at > excluded.due_at) THEN excluded.due_at ELSE coalesce(tasks.due_at, excluded.due_at) END), 
change_3 AS 
(INSERT INTO tasks (owner, subject, kind, due_at) SELECT :own AS anon_2, :which AS anon_3, :param_2 AS anon_8, :now AS anon_7 
FROM found 
WHERE (found.tokens + :more_tokens) - found.digested_tokens > :fold_above ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.failure IS NULL AND tasks.due_at > excluded.due_at) THEN excluded.due_at ELSE coalesce(tasks.due_at, excluded.due_at) END), 
change_4 AS 
(INSERT INTO tasks (owner, subject, kind, due_at) SELECT :own AS anon_2, :which AS anon_3, :param_3 AS anon_9, CASE WHEN (found.tokens / :every != (found.tokens + :more_tokens) / :every) THEN :now ELSE :idle_at END AS anon_10 
FROM found 
WHERE :extracting = 1 ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.attempts > :attempts_1 OR tasks.due_at <= :now) THEN tasks.due_at ELSE excluded.due_at END)
 SELECT found.last_seq, found.revision, found.tokens, found.digested_tokens 
FROM found;

-- storage.sessions.digests._LATEST
SELECT digests.owner, digests.session, digests.version, digests.text, digests.from_seq, digests.upto_seq, digests.covered_tokens, digests.parent, digests.model, digests.prompt, digests.tokens, digests.created_at, digests.trust 
FROM digests 
WHERE digests.owner = :owner AND digests.session = :session ORDER BY digests.version DESC
 LIMIT :param_1 OFFSET :param_2;

-- storage.sessions.sessions._ENSURE_OWNER
INSERT INTO owners (owner, kind, name, created_at) VALUES (:owner, :kind, :name, :created_at) ON CONFLICT DO NOTHING;

-- storage.sessions.sessions._RESTORE_NAME
UPDATE owners SET name=:known_as WHERE owners.owner = :which AND owners.name = :name_1;

-- storage.sessions.sessions._LOCK
INSERT INTO sessions (owner, session, agent, session_id, created_at, updated_at) VALUES (:owner, :session, :agent, :session_id, :created_at, :updated_at) ON CONFLICT (owner, session) DO UPDATE SET updated_at = excluded.updated_at RETURNING last_seq, revision, tokens, digested_tokens;

-- storage.sessions.sessions._TURN_COUNT
SELECT coalesce(sum(sessions.turns), :coalesce_1) AS held 
FROM sessions 
WHERE sessions.owner = :owner;

-- storage.sessions.sessions._STATE
SELECT sessions.state 
FROM sessions 
WHERE sessions.owner = :own AND sessions.session = :which;

-- storage.sessions.sessions._SET_STATE
UPDATE sessions SET revision=(sessions.revision + :more), state=:text WHERE sessions.owner = :own AND sessions.session = :which;

-- storage.sessions.sessions._ADVANCE
UPDATE sessions SET last_seq=(sessions.last_seq + :more_turns), turns=(sessions.turns + :more_turns), tokens=(sessions.tokens + :more_tokens), revision=(sessions.revision + :revision_1) WHERE sessions.owner = :own AND sessions.session = :which;

-- storage.sessions.tasks._SCHEDULE
INSERT INTO tasks (owner, subject, kind, due_at) VALUES (:owner, :subject, :kind, :due_at) ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.failure IS NULL AND tasks.due_at > excluded.due_at) THEN excluded.due_at ELSE coalesce(tasks.due_at, excluded.due_at) END;

-- storage.sessions.tasks._RESCHEDULE
INSERT INTO tasks (owner, subject, kind, due_at) VALUES (:owner, :subject, :kind, :due_at) ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.attempts > :attempts_1 OR tasks.due_at <= :now) THEN tasks.due_at ELSE excluded.due_at END;

-- storage.sessions.tasks._EPOCH
SELECT owners.erase_epoch 
FROM owners 
WHERE owners.owner = :key_owner;

-- storage.sessions.tasks._SESSION
SELECT sessions.owner, sessions.session, sessions.agent, sessions.session_id, sessions.last_seq, sessions.turns, sessions.tokens, sessions.revision, sessions.state, sessions.digested_tokens, sessions.digest_version, sessions.created_at, sessions.updated_at 
FROM sessions 
WHERE sessions.owner = :key_owner AND sessions.session = :key_subject;

-- storage.sessions.tasks._LEASE
SELECT tasks.lease, tasks.upto 
FROM tasks 
WHERE tasks.owner = :key_owner AND tasks.subject = :key_subject AND tasks.kind = :key_kind;

-- storage.sessions.tasks._ADVANCE
UPDATE tasks SET upto=:reached, attempts=:attempts, failure=NULL WHERE tasks.owner = :key_owner AND tasks.subject = :key_subject AND tasks.kind = :key_kind AND tasks.lease = :key_lease;

-- storage.sessions.tasks._COMPLETE
UPDATE tasks SET due_at=:next_due, lease=NULL, lease_until=NULL, attempts=:attempts, failure=NULL WHERE tasks.owner = :key_owner AND tasks.subject = :key_subject AND tasks.kind = :key_kind AND tasks.lease = :key_lease;

-- storage.sessions.turns._INSERT
INSERT INTO turns (owner, session, seq, turn_id, role, name, kind, turn_group, content, payload, tokens, visibility, created_at, utc_offset, event_at, noted_by) VALUES (:owner, :session, :seq, :turn_id, :role, :name, :kind, :turn_group, :content, :payload, :tokens, :visibility, :created_at, :utc_offset, :event_at, :noted_by);

-- storage.sessions.turns._NEWEST
SELECT turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.noted_by, CASE WHEN (length(turns.content) <= :most) THEN turns.content ELSE substr(turns.content, :substr_1, :end) END AS content, CASE WHEN (length(turns.content) > :most) THEN substr(turns.content, (length(turns.content) - :end) + :param_1) END AS content_tail, length(turns.content) AS content_size 
FROM turns 
WHERE turns.owner = :owner AND turns.session = :session AND turns.seq > (SELECT sessions.last_seq - :reach AS anon_1 
FROM sessions 
WHERE sessions.owner = :owner AND sessions.session = :session) AND turns.erased IS 0 ORDER BY turns.seq DESC
 LIMIT :limit OFFSET :param_2;

-- storage.sessions.turns._OUTLINES
SELECT turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.noted_by, :param_1 AS content 
FROM turns 
WHERE turns.owner = :owner AND turns.session = :session AND turns.seq > (SELECT sessions.last_seq - :reach AS anon_1 
FROM sessions 
WHERE sessions.owner = :owner AND sessions.session = :session) AND turns.erased IS 0 ORDER BY turns.seq DESC
 LIMIT :limit OFFSET :param_2;

-- storage.sessions.turns._NEWEST_OF_USER
SELECT turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.noted_by, CASE WHEN (length(turns.content) <= :most) THEN turns.content ELSE substr(turns.content, :substr_1, :end) END AS content, CASE WHEN (length(turns.content) > :most) THEN substr(turns.content, (length(turns.content) - :end) + :param_1) END AS content_tail, length(turns.content) AS content_size 
FROM turns 
WHERE turns.owner = :owner AND turns.session = :session AND turns.seq > (SELECT sessions.last_seq - :reach AS anon_1 
FROM sessions 
WHERE sessions.owner = :owner AND sessions.session = :session) AND turns.erased IS 0 AND turns.role = :role_1 AND turns.kind = :kind_1 AND turns.content != :content_1 ORDER BY turns.seq DESC
 LIMIT :param_2 OFFSET :param_3;

-- storage.sessions.turns._BY_IDS
SELECT turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.content, turns.payload, turns.noted_by 
FROM turns 
WHERE turns.owner = :owner AND turns.session = :session AND turns.turn_id IN (SELECT anon_1.value 
FROM json_each(:ids) AS anon_1);

-- storage.threads.checkpoints._BLOBS
SELECT checkpoint_blobs.owner, checkpoint_blobs.thread, checkpoint_blobs.place, checkpoint_blobs.blob, checkpoint_blobs.channel, checkpoint_blobs.version, checkpoint_blobs.type, checkpoint_blobs.data 
FROM checkpoint_blobs 
WHERE checkpoint_blobs.owner = :owner AND checkpoint_blobs.thread = :value_0 AND checkpoint_blobs.place = :value_1 AND checkpoint_blobs.blob = :value_2;

-- storage.threads.checkpoints._WRITES
SELECT checkpoint_writes.owner, checkpoint_writes.thread, checkpoint_writes.place, checkpoint_writes.checkpoint_id, checkpoint_writes.task_id, checkpoint_writes.idx, checkpoint_writes.task_path, checkpoint_writes.channel, checkpoint_writes.type, checkpoint_writes.data 
FROM checkpoint_writes 
WHERE checkpoint_writes.owner = :owner AND checkpoint_writes.thread = :value_0 AND checkpoint_writes.place = :value_1 AND checkpoint_writes.checkpoint_id = :value_2;

-- storage.threads.threads._TOUCH
INSERT INTO threads (owner, thread, agent, thread_id, for_all, created_at, updated_at) VALUES (:owner, :thread, :agent, :thread_id, :for_all, :created_at, :updated_at) ON CONFLICT (owner, thread) DO UPDATE SET updated_at = excluded.updated_at;

-- storage.threads.threads._PUT
INSERT INTO checkpoints (owner, thread, place, checkpoint_id, ns, parent_id, type, data, metadata, versions, run_id, created_at) VALUES (:owner, :thread, :place, :checkpoint_id, :ns, :parent_id, :type, :data, :metadata, :versions, :run_id, :created_at) ON CONFLICT (owner, thread, place, checkpoint_id) DO UPDATE SET ns = excluded.ns, parent_id = excluded.parent_id, type = excluded.type, data = excluded.data, metadata = excluded.metadata, versions = excluded.versions, run_id = excluded.run_id, created_at = excluded.created_at;

-- storage.threads.threads._PUT_BLOB
INSERT INTO checkpoint_blobs (owner, thread, place, blob, channel, version, type, data) VALUES (:owner, :thread, :place, :blob, :channel, :version, :type, :data) ON CONFLICT DO NOTHING;

-- storage.threads.threads._ADD_WRITE
INSERT INTO checkpoint_writes (owner, thread, place, checkpoint_id, task_id, idx, task_path, channel, type, data) VALUES (:owner, :thread, :place, :checkpoint_id, :task_id, :idx, :task_path, :channel, :type, :data) ON CONFLICT DO NOTHING;

-- storage.threads.threads._REPLACE_WRITE
INSERT INTO checkpoint_writes (owner, thread, place, checkpoint_id, task_id, idx, task_path, channel, type, data) VALUES (:owner, :thread, :place, :checkpoint_id, :task_id, :idx, :task_path, :channel, :type, :data) ON CONFLICT (owner, thread, place, checkpoint_id, task_id, idx) DO UPDATE SET task_path = excluded.task_path, channel = excluded.channel, type = excluded.type, data = excluded.data;
