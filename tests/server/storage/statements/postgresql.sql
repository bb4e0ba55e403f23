-- storage.engine.database._SET_SCOPE
SELECT set_config(%(set_config_2)s::VARCHAR, %(owner)s, %(set_config_3)s) AS set_config_1, set_config(%(set_config_5)s::VARCHAR, %(system)s, %(set_config_6)s) AS set_config_4, set_config(%(set_config_8)s::VARCHAR, %(plans)s, %(set_config_9)s) AS set_config_7;

-- storage.engine.store_secrets._VALUE
SELECT store.value 
FROM store 
WHERE store.name = %(name)s::VARCHAR;

-- storage.erasure.erased_ids._ANY_ERASED
SELECT erased_turns.until 
FROM erased_turns 
WHERE erased_turns.owner = %(owner)s::UUID 
 LIMIT %(param_1)s::INTEGER;

-- storage.erasure.erased_ids._ERASED
SELECT erased_turns.turn 
FROM erased_turns 
WHERE erased_turns.owner = %(owner)s::UUID AND erased_turns.until > %(now)s::BIGINT AND (erased_turns.turn) IN (SELECT anon_1.value_0 
FROM unnest(%(value_0)s::BYTEA[]) AS anon_1(value_0));

-- storage.memories.facts._CITED
SELECT fact_sources.fact, facts.valid_from, facts.valid_to, fact_sources.session, fact_sources.from_seq, fact_sources.upto_seq 
FROM fact_sources JOIN facts ON fact_sources.owner = facts.owner AND fact_sources.fact = facts.fact 
WHERE fact_sources.owner = %(owner)s::UUID;

-- storage.memories.facts._HISTORY
SELECT facts.owner, facts.fact, facts.root, facts.agent, facts.session, facts.session_id, facts.visibility, facts.shared, facts.writer, facts.text, facts.origin, facts.extracted_by, facts.trust, facts.metadata, facts.created_at, facts.event_at, facts.valid_from, facts.valid_to, facts.superseded_by, facts.expires_at, facts.extended, facts.pinned, facts.access_count 
FROM facts 
WHERE facts.owner = %(owner)s::UUID AND (coalesce(facts.agent = %(agent)s::VARCHAR, false) AND facts.session = %(session)s::UUID OR coalesce(facts.agent = %(agent)s::VARCHAR, false) AND facts.visibility >= %(agent_floor)s::SMALLINT OR facts.visibility >= %(user_floor)s::SMALLINT) AND facts.valid_from <= %(at)s::BIGINT AND facts.valid_to > %(at)s::BIGINT ORDER BY facts.valid_from DESC 
 LIMIT %(param_1)s::INTEGER;

-- storage.memories.facts._OWN
SELECT facts.owner, facts.fact, facts.root, facts.agent, facts.session, facts.session_id, facts.visibility, facts.shared, facts.writer, facts.text, facts.origin, facts.extracted_by, facts.trust, facts.metadata, facts.created_at, facts.event_at, facts.valid_from, facts.valid_to, facts.superseded_by, facts.expires_at, facts.extended, facts.pinned, facts.access_count 
FROM facts 
WHERE facts.valid_to IS NULL AND facts.owner = %(owner)s::UUID AND (facts.fact) IN (SELECT anon_1.value_0 
FROM unnest(%(value_0)s::UUID[]) AS anon_1(value_0));

-- storage.memories.facts._SHARED
SELECT facts.owner, facts.fact, facts.root, facts.agent, facts.session, facts.session_id, facts.visibility, facts.shared, facts.writer, facts.text, facts.origin, facts.extracted_by, facts.trust, facts.metadata, facts.created_at, facts.event_at, facts.valid_from, facts.valid_to, facts.superseded_by, facts.expires_at, facts.extended, facts.pinned, facts.access_count 
FROM facts 
WHERE facts.valid_to IS NULL AND facts.shared AND (facts.fact) IN (SELECT anon_1.value_0 
FROM unnest(%(value_0)s::UUID[]) AS anon_1(value_0));

-- storage.memories.facts._SOURCES
SELECT fact_sources.fact, sessions.session_id, fact_sources.from_seq, fact_sources.upto_seq 
FROM fact_sources JOIN sessions ON fact_sources.owner = sessions.owner AND fact_sources.session = sessions.session 
WHERE (fact_sources.owner, fact_sources.fact) IN (SELECT anon_1.value_0, anon_1.value_1 
FROM unnest(%(value_0)s::UUID[], %(value_1)s::UUID[]) AS anon_1(value_0, value_1)) ORDER BY fact_sources.fact, sessions.session_id, fact_sources.from_seq;

-- storage.memories.index._ADD_PASSAGE
INSERT INTO passages (pool, source, seq, part, owner, agent, session, visibility, speaker, length, event_at, trust, expires_at, rev, terms) VALUES (%(pool)s::UUID, %(source)s::UUID, %(seq)s::INTEGER, %(part)s::SMALLINT, %(owner)s::UUID, %(agent)s::VARCHAR, %(session)s::UUID, %(visibility)s::SMALLINT, %(speaker)s::VARCHAR, %(length)s::INTEGER, %(event_at)s::BIGINT, %(trust)s, %(expires_at)s::BIGINT, %(rev)s::BIGINT, %(terms)s::VARCHAR);

-- storage.memories.index._ADD_POSTING
INSERT INTO postings (pool, term, source, seq, part, owner, tf) VALUES (%(pool)s::UUID, %(term)s::VARCHAR, %(source)s::UUID, %(seq)s::INTEGER, %(part)s::SMALLINT, %(owner)s::UUID, %(tf)s::SMALLINT);

-- storage.memories.index._SET_VECTOR
UPDATE passages SET embedder=%(stamp)s::VARCHAR, vector=%(values)s, rev=%(raised)s::BIGINT WHERE passages.pool = %(key_pool)s::UUID AND passages.source = %(key_source)s::UUID AND passages.seq = %(key_seq)s::INTEGER AND passages.part = %(key_part)s::SMALLINT;

-- storage.memories.owner_index._REVISION
SELECT owners.index_rev, owners.index_cut, owners.erase_epoch, owners.facts_rev, owners.created_at 
FROM owners 
WHERE owners.owner = %(owner)s::UUID;

-- storage.memories.owner_index._ROWS
SELECT passages.source, passages.seq, passages.part, passages.agent, passages.session, passages.visibility, passages.speaker, passages.length, passages.event_at, passages.trust, passages.expires_at, passages.embedder, passages.vector, passages.terms 
FROM passages 
WHERE passages.pool = %(owner)s::UUID AND passages.rev > %(after)s::BIGINT;

-- storage.memories.owner_index._KEYS
SELECT passages.source, passages.seq, passages.part 
FROM passages 
WHERE passages.pool = %(owner)s::UUID;

-- storage.memories.owner_index._COUNT
SELECT count(*) AS count_1 
FROM passages 
WHERE passages.pool = %(owner)s::UUID;

-- storage.memories.search_queries._CORPUS
SELECT count(*) AS count_1, coalesce(avg(passages.length), %(coalesce_2)s::INTEGER) AS coalesce_1 
FROM passages 
WHERE passages.pool = %(pool)s::UUID;

-- storage.memories.search_queries._LEXICAL[False]
WITH hits AS MATERIALIZED 
(SELECT postings.pool AS pool, postings.term AS term, postings.source AS source, postings.seq AS seq, postings.part AS part, postings.owner AS owner, postings.tf AS tf 
FROM postings 
WHERE postings.pool = %(pool)s::UUID AND postings.term = ANY (%(terms)s::TEXT[]))
 SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, hits.term, hits.tf, NULL AS anon_1, passages.embedder IS NULL AS pending 
FROM hits JOIN passages ON hits.pool = passages.pool AND hits.source = passages.source AND hits.seq = passages.seq AND hits.part = passages.part 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.owner = %(owner)s::UUID AND (coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.session = %(session)s::UUID OR coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.visibility >= %(agent_floor)s::SMALLINT OR passages.visibility >= %(user_floor)s::SMALLINT);

-- storage.memories.search_queries._LEXICAL[True]
WITH hits AS MATERIALIZED 
(SELECT postings.pool AS pool, postings.term AS term, postings.source AS source, postings.seq AS seq, postings.part AS part, postings.owner AS owner, postings.tf AS tf 
FROM postings 
WHERE postings.pool = %(pool)s::UUID AND postings.term = ANY (%(terms)s::TEXT[]))
 SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, hits.term, hits.tf, NULL AS anon_1, passages.embedder IS NULL AS pending 
FROM hits JOIN passages ON hits.pool = passages.pool AND hits.source = passages.source AND hits.seq = passages.seq AND hits.part = passages.part 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT;

-- storage.memories.search_queries._NEAREST[False]
SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, NULL AS anon_1, %(param_1)s::INTEGER AS anon_2, -(passages.vector <#> %(query)s) AS cosine, false AS anon_3 
FROM passages 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.owner = %(owner)s::UUID AND (coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.session = %(session)s::UUID OR coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.visibility >= %(agent_floor)s::SMALLINT OR passages.visibility >= %(user_floor)s::SMALLINT) AND passages.embedder = %(embedder)s::VARCHAR ORDER BY passages.vector <#> %(query)s 
 LIMIT %(param_2)s::INTEGER;

-- storage.memories.search_queries._NEAREST[True]
SELECT passages.source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length, NULL AS anon_1, %(param_1)s::INTEGER AS anon_2, -(passages.vector <#> %(query)s) AS cosine, false AS anon_3 
FROM passages 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.embedder = %(embedder)s::VARCHAR ORDER BY passages.vector <#> %(query)s 
 LIMIT %(param_2)s::INTEGER;

-- storage.memories.search_queries._VECTORS[False]
SELECT passages.vector AS vector, passages.source AS source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length 
FROM passages 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.owner = %(owner)s::UUID AND (coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.session = %(session)s::UUID OR coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.visibility >= %(agent_floor)s::SMALLINT OR passages.visibility >= %(user_floor)s::SMALLINT) AND passages.embedder = %(embedder)s::VARCHAR;

-- storage.memories.search_queries._VECTORS[True]
SELECT passages.vector AS vector, passages.source AS source, passages.seq, passages.part, passages.speaker, passages.event_at, passages.length 
FROM passages 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.embedder = %(embedder)s::VARCHAR;

-- storage.memories.search_queries._UNEMBEDDED[False]
SELECT count(*) AS count_1 
FROM (SELECT DISTINCT passages.source AS source, passages.seq AS seq 
FROM passages 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.owner = %(owner)s::UUID AND (coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.session = %(session)s::UUID OR coalesce(passages.agent = %(agent)s::VARCHAR, false) AND passages.visibility >= %(agent_floor)s::SMALLINT OR passages.visibility >= %(user_floor)s::SMALLINT) AND passages.embedder IS NULL) AS anon_1;

-- storage.memories.search_queries._UNEMBEDDED[True]
SELECT count(*) AS count_1 
FROM (SELECT DISTINCT passages.source AS source, passages.seq AS seq 
FROM passages 
WHERE passages.pool = %(pool)s::UUID AND (passages.expires_at IS NULL OR passages.expires_at > %(now)s::BIGINT) AND passages.trust >= %(min_trust)s AND passages.event_at <= %(until)s::BIGINT AND passages.embedder IS NULL) AS anon_1;

-- storage.memories.turn_memories._BY_KEYS
SELECT turns.owner, turns.session, turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.event_at, turns.noted_by, CASE WHEN (length(turns.content) <= %(length_1)s::INTEGER) THEN turns.content ELSE substr(turns.content, %(substr_1)s::INTEGER, %(substr_2)s::INTEGER) END AS content, CASE WHEN (length(turns.content) > %(length_2)s::INTEGER) THEN substr(turns.content, (length(turns.content) - %(length_3)s::INTEGER) + %(param_1)s::INTEGER) END AS content_tail, length(turns.content) AS content_size, sessions.agent, sessions.session_id 
FROM turns JOIN sessions ON turns.owner = sessions.owner AND turns.session = sessions.session 
WHERE turns.erased IS false AND turns.role != %(role_1)s::VARCHAR AND turns.owner = %(owner)s::UUID AND (coalesce(sessions.agent = %(agent)s::VARCHAR, false) AND turns.session = %(session)s::UUID OR coalesce(sessions.agent = %(agent)s::VARCHAR, false) AND turns.visibility >= %(agent_floor)s::SMALLINT OR turns.visibility >= %(user_floor)s::SMALLINT) AND (turns.session, turns.seq) IN (SELECT anon_1.value_0, anon_1.value_1 
FROM unnest(%(value_0)s::UUID[], %(value_1)s::INTEGER[]) AS anon_1(value_0, value_1));

-- storage.memories.turn_memories._CONTENT
SELECT CASE WHEN (length(turns.content) <= %(most)s::INTEGER) THEN turns.content END AS anon_1 
FROM turns 
WHERE turns.owner = %(owner)s::UUID AND turns.session = %(session)s::UUID AND turns.seq = %(seq)s::INTEGER;

-- storage.memories.turn_memories._UNINDEXED
SELECT anon_1.owner, anon_1.session, anon_1.seq, anon_1.turn_id, anon_1.role, anon_1.name, anon_1.kind, anon_1.turn_group, anon_1.tokens, anon_1.visibility, anon_1.erased, anon_1.imported, anon_1.created_at, anon_1.utc_offset, anon_1.event_at, anon_1.noted_by, CASE WHEN (octet_length(anon_1.content) <= %(most)s::INTEGER AND sum(CASE WHEN (octet_length(anon_1.content) <= %(most)s::INTEGER) THEN octet_length(anon_1.content) ELSE %(param_1)s::INTEGER END) OVER (ORDER BY anon_1.event_at DESC, anon_1.seq DESC) <= %(most)s::INTEGER) THEN anon_1.content END AS content 
FROM (SELECT turns.owner AS owner, turns.session AS session, turns.seq AS seq, turns.turn_id AS turn_id, turns.role AS role, turns.name AS name, turns.kind AS kind, turns.turn_group AS turn_group, turns.tokens AS tokens, turns.visibility AS visibility, turns.erased AS erased, turns.imported AS imported, turns.created_at AS created_at, turns.utc_offset AS utc_offset, turns.event_at AS event_at, turns.noted_by AS noted_by, turns.content AS content 
FROM turns JOIN sessions ON turns.owner = sessions.owner AND turns.session = sessions.session JOIN tasks ON tasks.owner = turns.owner AND tasks.subject = turns.session 
WHERE turns.erased IS false AND turns.role != %(role_1)s::VARCHAR AND turns.owner = %(owner)s::UUID AND (coalesce(sessions.agent = %(agent)s::VARCHAR, false) AND turns.session = %(session)s::UUID OR coalesce(sessions.agent = %(agent)s::VARCHAR, false) AND turns.visibility >= %(agent_floor)s::SMALLINT OR turns.visibility >= %(user_floor)s::SMALLINT) AND (tasks.kind || %(kind_1)s::VARCHAR) = %(param_2)s::VARCHAR AND (tasks.due_at IS NOT NULL OR tasks.parked IS NOT NULL) AND turns.seq > tasks.upto ORDER BY turns.event_at DESC, turns.seq DESC 
 LIMIT %(param_3)s::INTEGER) AS anon_1 ORDER BY anon_1.event_at DESC, anon_1.seq DESC;

-- storage.sessions.append._LOCK
SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1 
FROM sessions 
WHERE sessions.owner = %(own)s::UUID AND sessions.session = %(which)s::UUID FOR NO KEY UPDATE;

-- storage.sessions.append._APPEND
WITH found AS 
(SELECT sessions.last_seq AS last_seq, sessions.revision AS revision, sessions.tokens AS tokens, sessions.digested_tokens AS digested_tokens 
FROM sessions 
WHERE sessions.owner = %(own)s::UUID AND sessions.session = %(which)s::UUID AND current_setting(%(current_setting_1)s::VARCHAR, %(current_setting_2)s) = %(current_setting_3)s::VARCHAR AND (EXISTS (SELECT * 
FROM owners 
WHERE owners.owner = %(own)s::UUID AND owners.name != %(name_1)s::VARCHAR)) AND NOT (EXISTS (SELECT * 
FROM unnest(%(ids)s::TEXT[]) AS anon_4(id) 
WHERE (SELECT true AS anon_5 
FROM turns 
WHERE turns.owner = %(own)s::UUID AND turns.session = %(which)s::UUID AND turns.turn_id = anon_4.id))) AND NOT (EXISTS (SELECT * 
FROM erased_turns 
WHERE erased_turns.owner = %(own)s::UUID))), 
change_0 AS 
(INSERT INTO turns (seq, turn_id, role, name, kind, turn_group, content, payload, tokens, visibility, created_at, utc_offset, event_at, noted_by, owner, session) SELECT found.last_seq + given.seq AS anon_1, given.turn_id AS turn_id, given.role AS role, given.name AS name, given.kind AS kind, given.turn_group AS turn_group, given.content AS content, given.payload AS payload, given.tokens AS tokens, given.visibility AS visibility, given.created_at AS created_at, given.utc_offset AS utc_offset, given.event_at AS event_at, given.noted_by AS noted_by, %(own)s::UUID AS anon_2, %(which)s::UUID AS anon_3 
FROM found JOIN json_to_recordset(%(rows)s::JSON) AS given(seq INTEGER, turn_id TEXT, role TEXT, name TEXT, kind TEXT, turn_group TEXT, content TEXT, payload TEXT, tokens INTEGER, visibility SMALLINT, created_at BIGINT, utc_offset SMALLINT, event_at BIGINT, noted_by TEXT) ON true), 
change_1 AS 
(UPDATE sessions SET last_seq=(sessions.last_seq + %(more_turns)s::INTEGER), turns=(sessions.turns + %(more_turns)s::INTEGER), tokens=(sessions.tokens + %(more_tokens)s::BIGINT), revision=(sessions.revision + %(revision_1)s::BIGINT), updated_at=%(now)s::BIGINT WHERE sessions.owner = %(own)s::UUID AND sessions.session = %(which)s::UUID AND (EXISTS (SELECT * 
FROM found))), 
change_2 AS 
(INSERT INTO tasks (owner, subject, kind, due_at) SELECT %(own)s::UUID AS anon_2, %(which)s::UUID AS anon_3, %(param_1)s::VARCHAR AS anon_6, %(now)s::BIGINT AS anon_7 
FROM found ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.failure IS NULL AND tasks.due_at > excluded.due_at) THEN excluded.due_at ELSE coalesce(tasks.due_at, excluded.due_at) END), 
change_3 AS 
(INSERT INTO tasks (owner, subject, kind, due_at) SELECT %(own)s::UUID AS anon_2, %(which)s::UUID AS anon_3, %(param_2)s::VARCHAR AS anon_8, %(now)s::BIGINT AS anon_7 
FROM found 
WHERE (found.tokens + %(more_tokens)s::BIGINT) - found.digested_tokens > %(fold_above)s::BIGINT ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.failure IS NULL AND tasks.due_at > excluded.due_at) THEN excluded.due_at ELSE coalesce(tasks.due_at, excluded.due_at) END), 
change_4 AS 
(INSERT INTO tasks (owner, subject, kind, due_at) SELECT %(own)s::UUID AS anon_2, %(which)s::UUID AS anon_3, %(param_3)s::VARCHAR AS anon_9, CASE WHEN (found.tokens / %(every)s::BIGINT != (found.tokens + %(more_tokens)s::BIGINT) / %(every)s::BIGINT) THEN %(now)s::BIGINT ELSE %(idle_at)s::BIGINT END AS anon_10 
FROM found 
WHERE %(extracting)s ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.attempts > %(attempts_1)s::INTEGER OR tasks.due_at <= %(now)s::BIGINT) THEN tasks.due_at ELSE excluded.due_at END)
 SELECT found.last_seq, found.revision, found.tokens, found.digested_tokens 
FROM found;

-- storage.sessions.digests._LATEST
SELECT digests.owner, digests.session, digests.version, digests.text, digests.from_seq, digests.upto_seq, digests.covered_tokens, digests.parent, digests.model, digests.prompt, digests.tokens, digests.created_at, digests.trust 
FROM digests 
WHERE digests.owner = %(owner)s::UUID AND digests.session = %(session)s::UUID ORDER BY digests.version DESC 
 LIMIT %(param_1)s::INTEGER;

-- storage.sessions.sessions._ENSURE_OWNER
INSERT INTO owners (owner, kind, name, created_at) VALUES (%(owner)s::UUID, %(kind)s::VARCHAR, %(name)s::VARCHAR, %(created_at)s::BIGINT) ON CONFLICT DO NOTHING;

-- storage.sessions.sessions._RESTORE_NAME
UPDATE owners SET name=%(known_as)s::VARCHAR WHERE owners.owner = %(which)s::UUID AND owners.name = %(name_1)s::VARCHAR;

-- storage.sessions.sessions._LOCK
INSERT INTO sessions (owner, session, agent, session_id, created_at, updated_at) VALUES (%(owner)s::UUID, %(session)s::UUID, %(agent)s::VARCHAR, %(session_id)s::VARCHAR, %(created_at)s::BIGINT, %(updated_at)s::BIGINT) ON CONFLICT (owner, session) DO UPDATE SET updated_at = excluded.updated_at RETURNING sessions.last_seq, sessions.revision, sessions.tokens, sessions.digested_tokens;

-- storage.sessions.sessions._TURN_COUNT
SELECT coalesce(sum(sessions.turns), %(coalesce_1)s::INTEGER) AS held 
FROM sessions 
WHERE sessions.owner = %(owner)s::UUID;

-- storage.sessions.sessions._STATE
SELECT sessions.state 
FROM sessions 
WHERE sessions.owner = %(own)s::UUID AND sessions.session = %(which)s::UUID;

-- storage.sessions.sessions._SET_STATE
UPDATE sessions SET revision=(sessions.revision + %(more)s::BIGINT), state=%(text)s::VARCHAR WHERE sessions.owner = %(own)s::UUID AND sessions.session = %(which)s::UUID;

-- storage.sessions.sessions._ADVANCE
UPDATE sessions SET last_seq=(sessions.last_seq + %(more_turns)s::INTEGER), turns=(sessions.turns + %(more_turns)s::INTEGER), tokens=(sessions.tokens + %(more_tokens)s::BIGINT), revision=(sessions.revision + %(revision_1)s::BIGINT) WHERE sessions.owner = %(own)s::UUID AND sessions.session = %(which)s::UUID;

-- storage.sessions.tasks._SCHEDULE
INSERT INTO tasks (owner, subject, kind, due_at) VALUES (%(owner)s::UUID, %(subject)s::UUID, %(kind)s::VARCHAR, %(due_at)s::BIGINT) ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.failure IS NULL AND tasks.due_at > excluded.due_at) THEN excluded.due_at ELSE coalesce(tasks.due_at, excluded.due_at) END;

-- storage.sessions.tasks._RESCHEDULE
INSERT INTO tasks (owner, subject, kind, due_at) VALUES (%(owner)s::UUID, %(subject)s::UUID, %(kind)s::VARCHAR, %(due_at)s::BIGINT) ON CONFLICT (owner, subject, kind) DO UPDATE SET due_at = CASE WHEN (tasks.parked IS NOT NULL) THEN NULL WHEN (tasks.attempts > %(attempts_1)s::INTEGER OR tasks.due_at <= %(now)s::BIGINT) THEN tasks.due_at ELSE excluded.due_at END;

-- storage.sessions.tasks._EPOCH
SELECT owners.erase_epoch 
FROM owners 
WHERE owners.owner = %(key_owner)s::UUID FOR NO KEY UPDATE;

-- storage.sessions.tasks._SESSION
SELECT sessions.owner, sessions.session, sessions.agent, sessions.session_id, sessions.last_seq, sessions.turns, sessions.tokens, sessions.revision, sessions.state, sessions.digested_tokens, sessions.digest_version, sessions.created_at, sessions.updated_at 
FROM sessions 
WHERE sessions.owner = %(key_owner)s::UUID AND sessions.session = %(key_subject)s::UUID FOR NO KEY UPDATE;

-- storage.sessions.tasks._LEASE
SELECT tasks.lease, tasks.upto 
FROM tasks 
WHERE tasks.owner = %(key_owner)s::UUID AND tasks.subject = %(key_subject)s::UUID AND tasks.kind = %(key_kind)s::VARCHAR FOR UPDATE;

-- storage.sessions.tasks._ADVANCE
UPDATE tasks SET upto=%(reached)s::INTEGER, attempts=%(attempts)s::INTEGER, failure=NULL WHERE tasks.owner = %(key_owner)s::UUID AND tasks.subject = %(key_subject)s::UUID AND tasks.kind = %(key_kind)s::VARCHAR AND tasks.lease = %(key_lease)s::UUID;

-- storage.sessions.tasks._COMPLETE
UPDATE tasks SET due_at=%(next_due)s::BIGINT, lease=NULL, lease_until=NULL, attempts=%(attempts)s::INTEGER, failure=NULL WHERE tasks.owner = %(key_owner)s::UUID AND tasks.subject = %(key_subject)s::UUID AND tasks.kind = %(key_kind)s::VARCHAR AND tasks.lease = %(key_lease)s::UUID;

-- storage.sessions.turns._INSERT
INSERT INTO turns (owner, session, seq, turn_id, role, name, kind, turn_group, content, payload, tokens, visibility, created_at, utc_offset, event_at, noted_by) VALUES (%(owner)s::UUID, %(session)s::UUID, %(seq)s::INTEGER, %(turn_id)s::VARCHAR, %(role)s::VARCHAR, %(name)s::VARCHAR, %(kind)s::VARCHAR, %(turn_group)s::VARCHAR, %(content)s::VARCHAR, %(payload)s::VARCHAR, %(tokens)s::INTEGER, %(visibility)s::SMALLINT, %(created_at)s::BIGINT, %(utc_offset)s::SMALLINT, %(event_at)s::BIGINT, %(noted_by)s::VARCHAR);

-- storage.sessions.turns._NEWEST
SELECT turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.noted_by, CASE WHEN (length(turns.content) <= %(most)s::INTEGER) THEN turns.content ELSE substr(turns.content, %(substr_1)s::INTEGER, %(end)s::INTEGER) END AS content, CASE WHEN (length(turns.content) > %(most)s::INTEGER) THEN substr(turns.content, (length(turns.content) - %(end)s::INTEGER) + %(param_1)s::INTEGER) END AS content_tail, length(turns.content) AS content_size 
FROM turns 
WHERE turns.owner = %(owner)s::UUID AND turns.session = %(session)s::UUID AND turns.seq > (SELECT sessions.last_seq - %(reach)s::BIGINT AS anon_1 
FROM sessions 
WHERE sessions.owner = %(owner)s::UUID AND sessions.session = %(session)s::UUID) AND turns.erased IS false ORDER BY turns.seq DESC 
 LIMIT %(limit)s;

-- storage.sessions.turns._OUTLINES
SELECT turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.noted_by, %(param_1)s::VARCHAR AS content 
FROM turns 
WHERE turns.owner = %(owner)s::UUID AND turns.session = %(session)s::UUID AND turns.seq > (SELECT sessions.last_seq - %(reach)s::BIGINT AS anon_1 
FROM sessions 
WHERE sessions.owner = %(owner)s::UUID AND sessions.session = %(session)s::UUID) AND turns.erased IS false ORDER BY turns.seq DESC 
 LIMIT %(limit)s;

-- storage.sessions.turns._NEWEST_OF_USER
SELECT turns.seq, turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.tokens, turns.visibility, turns.erased, turns.imported, turns.created_at, turns.utc_offset, turns.noted_by, CASE WHEN (length(turns.content) <= %(most)s::INTEGER) THEN turns.content ELSE substr(turns.content, %(substr_1)s::INTEGER, %(end)s::INTEGER) END AS content, CASE WHEN (length(turns.content) > %(most)s::INTEGER) THEN substr(turns.content, (length(turns.content) - %(end)s::INTEGER) + %(param_1)s::INTEGER) END AS content_tail, length(turns.content) AS content_size 
FROM turns 
WHERE turns.owner = %(owner)s::UUID AND turns.session = %(session)s::UUID AND turns.seq > (SELECT sessions.last_seq - %(reach)s::BIGINT AS anon_1 
FROM sessions 
WHERE sessions.owner = %(owner)s::UUID AND sessions.session = %(session)s::UUID) AND turns.erased IS false AND turns.role = %(role_1)s::VARCHAR AND turns.kind = %(kind_1)s::VARCHAR AND turns.content != %(content_1)s::VARCHAR ORDER BY turns.seq DESC 
 LIMIT %(param_2)s::INTEGER;

-- storage.sessions.turns._BY_IDS
SELECT turns.turn_id, turns.role, turns.name, turns.kind, turns.turn_group, turns.content, turns.payload, turns.noted_by 
FROM turns 
WHERE turns.owner = %(owner)s::UUID AND turns.session = %(session)s::UUID AND turns.turn_id = ANY (%(ids)s::TEXT[]);

-- storage.threads.checkpoints._BLOBS
SELECT checkpoint_blobs.owner, checkpoint_blobs.thread, checkpoint_blobs.place, checkpoint_blobs.blob, checkpoint_blobs.channel, checkpoint_blobs.version, checkpoint_blobs.type, checkpoint_blobs.data 
FROM checkpoint_blobs 
WHERE checkpoint_blobs.owner = %(owner)s::UUID AND (checkpoint_blobs.thread, checkpoint_blobs.place, checkpoint_blobs.blob) IN (SELECT anon_1.value_0, anon_1.value_1, anon_1.value_2 
FROM unnest(%(value_0)s::UUID[], %(value_1)s::UUID[], %(value_2)s::UUID[]) AS anon_1(value_0, value_1, value_2));

-- storage.threads.checkpoints._WRITES
SELECT checkpoint_writes.owner, checkpoint_writes.thread, checkpoint_writes.place, checkpoint_writes.checkpoint_id, checkpoint_writes.task_id, checkpoint_writes.idx, checkpoint_writes.task_path, checkpoint_writes.channel, checkpoint_writes.type, checkpoint_writes.data 
FROM checkpoint_writes 
WHERE checkpoint_writes.owner = %(owner)s::UUID AND (checkpoint_writes.thread, checkpoint_writes.place, checkpoint_writes.checkpoint_id) IN (SELECT anon_1.value_0, anon_1.value_1, anon_1.value_2 
FROM unnest(%(value_0)s::UUID[], %(value_1)s::UUID[], %(value_2)s::TEXT[]) AS anon_1(value_0, value_1, value_2));

-- storage.threads.threads._TOUCH
INSERT INTO threads (owner, thread, agent, thread_id, for_all, created_at, updated_at) VALUES (%(owner)s::UUID, %(thread)s::UUID, %(agent)s::VARCHAR, %(thread_id)s::VARCHAR, %(for_all)s, %(created_at)s::BIGINT, %(updated_at)s::BIGINT) ON CONFLICT (owner, thread) DO UPDATE SET updated_at = excluded.updated_at;

-- storage.threads.threads._PUT
INSERT INTO checkpoints (owner, thread, place, checkpoint_id, ns, parent_id, type, data, metadata, versions, run_id, created_at) VALUES (%(owner)s::UUID, %(thread)s::UUID, %(place)s::UUID, %(checkpoint_id)s::VARCHAR COLLATE "C", %(ns)s::VARCHAR, %(parent_id)s::VARCHAR, %(type)s::VARCHAR, %(data)s, %(metadata)s::VARCHAR, %(versions)s::VARCHAR, %(run_id)s::VARCHAR, %(created_at)s::BIGINT) ON CONFLICT (owner, thread, place, checkpoint_id) DO UPDATE SET ns = excluded.ns, parent_id = excluded.parent_id, type = excluded.type, data = excluded.data, metadata = excluded.metadata, versions = excluded.versions, run_id = excluded.run_id, created_at = excluded.created_at;

-- storage.threads.threads._PUT_BLOB
INSERT INTO checkpoint_blobs (owner, thread, place, blob, channel, version, type, data) VALUES (%(owner)s::UUID, %(thread)s::UUID, %(place)s::UUID, %(blob)s::UUID, %(channel)s::VARCHAR, %(version)s::VARCHAR, %(type)s::VARCHAR, %(data)s) ON CONFLICT DO NOTHING;

-- storage.threads.threads._ADD_WRITE
INSERT INTO checkpoint_writes (owner, thread, place, checkpoint_id, task_id, idx, task_path, channel, type, data) VALUES (%(owner)s::UUID, %(thread)s::UUID, %(place)s::UUID, %(checkpoint_id)s::VARCHAR, %(task_id)s::VARCHAR, %(idx)s::INTEGER, %(task_path)s::VARCHAR, %(channel)s::VARCHAR, %(type)s::VARCHAR, %(data)s) ON CONFLICT DO NOTHING;

-- storage.threads.threads._REPLACE_WRITE
INSERT INTO checkpoint_writes (owner, thread, place, checkpoint_id, task_id, idx, task_path, channel, type, data) VALUES (%(owner)s::UUID, %(thread)s::UUID, %(place)s::UUID, %(checkpoint_id)s::VARCHAR, %(task_id)s::VARCHAR, %(idx)s::INTEGER, %(task_path)s::VARCHAR, %(channel)s::VARCHAR, %(type)s::VARCHAR, %(data)s) ON CONFLICT (owner, thread, place, checkpoint_id, task_id, idx) DO UPDATE SET task_path = excluded.task_path, channel = excluded.channel, type = excluded.type, data = excluded.data;
