"""The ranking of long-term memory: words, meaning and the structure of conversations, fused into one score. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.contract import ScoreParts
from threefold_server.text import query_terms, speakers_named

K1 = 0.9
B = 0.4

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Place = tuple[Hashable, int]


class Row(NamedTuple):
    source: Hashable
    seq: int
    part: int
    session: Hashable | None
    speaker: str | None
    at: int
    length: int
    term: str | None = None
    tf: int = 0
    cosine: float | None = None


class Ranked(NamedTuple):
    source: Hashable
    seq: int
    score: float
    parts: ScoreParts


W = dict(turn=0.4, window=0.6, session=0.2, speaker=0.1, dense=0.5, sat=0.0, cite="max", citew=0.0, b=0.4, wb=0.4, factsess="session", factspk=True, fill="min", noexist=True)


def unit(x):
    top = x.max(initial=0.0)
    return x / top if top > 0 else np.zeros_like(x)


def bm25(tf, length, docs, average, b):
    df = np.count_nonzero(tf, axis=0)
    idf = np.log1p((np.maximum(docs - df, 0) + 0.5) / (df + 0.5))
    norm = K1 * (1 - b + b * length / average)
    return (tf * (K1 + 1) / (tf + norm[:, None])) @ idf, idf


def codes(values):
    index = {v: i for i, v in enumerate(dict.fromkeys(values))}
    return np.fromiter(map(index.__getitem__, values), np.int64, len(values)), list(index)


def lookup(keys, wanted):
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    return np.where(keys[at] == wanted, at, len(keys))


AROUND = np.array([-1, 0, 1])


def rank(query, rows, *, passages, average, cited=None, min_score=None, limit=10, w=W):
    rows = list(rows)
    if not rows:
        return []
    qt = query_terms(query)
    source, seq, part, session, speaker, at, length, term, tf, cosine = zip(*rows)
    scode, sources = codes(source)
    key = scode << 32 | np.array(seq, np.int64)
    keys, first, item = np.unique(key, return_index=True, return_inverse=True)
    pk, pfirst, pas = np.unique(item << 16 | np.array(part, np.int64), return_index=True, return_inverse=True)
    pitem = item[pfirst]
    vocab = {t: i for i, t in enumerate(qt)}
    tcode = np.fromiter((vocab.get(t, -1) for t in term), np.int64, len(term))
    hit = tcode >= 0
    ptf = np.zeros((len(pk), len(qt)))
    ptf[pas[hit], tcode[hit]] = np.array(tf, float)[hit]
    pcos = np.full(len(pk), np.nan)
    np.fmax.at(pcos, pas, np.array(cosine, float))
    plen = np.array(length, float)[pfirst]
    n = len(keys)
    # items
    itf = np.zeros((n, len(qt)))
    np.add.at(itf, pitem, ptf)
    ilen = np.bincount(pitem, plen, n)
    icos = np.full(n, np.nan)
    np.fmax.at(icos, pitem, pcos)
    fact = (keys & 0xFFFFFFFF) == 0
    lex, idf = bm25(ptf, plen, passages, average, w["b"])
    known = pcos[~np.isnan(pcos)]
    fill = max(known.min(), 0) if len(known) else 0.0
    d = np.maximum(np.where(np.isnan(pcos), fill, pcos), 0)
    own = w["dense"] * unit(d) + (1 - w["dense"]) * unit(lex)
    turn = np.zeros(n)
    np.maximum.at(turn, pitem, own)
    ilex = np.zeros(n)
    np.maximum.at(ilex, pitem, unit(lex))
    # windows
    tk = keys[~fact]
    centres = np.unique(tk[:, None] + AROUND)
    centres = centres[(centres & 0xFFFFFFFF) > 0]
    around = lookup(keys, centres[:, None] + AROUND)
    idn = np.append(np.maximum(np.where(np.isnan(icos), fill, icos), 0), fill)
    wcos = idn[around].mean(1) if len(centres) else np.zeros(0)
    wtf = np.vstack([itf, np.zeros(len(qt))])[around].sum(1)
    wl = np.append(ilen, average)[around].sum(1)
    wlex, _ = bm25(wtf, wl, passages, 3 * average, w["wb"])
    win = np.append(w["dense"] * unit(wcos) + (1 - w["dense"]) * unit(wlex), 0)
    window = turn.copy()
    window[~fact] = win[lookup(centres, tk[:, None] + AROUND)].max(1) if len(tk) else 0
    # sessions
    sess, slist = codes([session[i] for i in first])
    stf = np.zeros((len(slist), len(qt)))
    np.add.at(stf, sess[~fact], itf[~fact])
    slex, _ = bm25(stf, np.ones(len(slist)), len(slist), 1, 0)
    sscore = unit(slex)[sess]
    nosess = np.array([session[i] is None for i in first])
    if w["factsess"] == "own":
        nosess = fact
    sscore[nosess] = ilex[nosess]
    spk = [speaker[i] for i in first]
    named = speakers_named(query, {s for s in spk if s})
    sp = np.array([s in named for s in spk], float)
    if w["factspk"]:
        nt = [vocab[t] for s in named for t in query_terms(s) if t in vocab]
        sp[fact] = (itf[fact][:, nt] > 0).any(1)
    turn0 = turn.copy()
    boost = np.zeros(n)
    if cited:
        fi = {sources[keys[i] >> 32]: i for i in np.flatnonzero(fact)}
        sc = {s: i for i, s in enumerate(sources)}
        for f, places in cited.items():
            if f in fi:
                for s, q in places:
                    if s in sc:
                        j = lookup(keys, np.array([sc[s] << 32 | q]))[0]
                        if j < n:
                            boost[j] = max(boost[j], turn0[fi[f]])
        if w["cite"] == "max":
            turn = np.maximum(turn, boost)
        elif w["cite"] == "maxwin":
            turn = np.maximum(turn, boost); window = np.maximum(window, boost)
    score = w["turn"] * turn + w["window"] * window + w["session"] * sscore + w["speaker"] * sp + w["citew"] * boost + w["sat"] * ilen / (ilen + average)
    coverage = (itf > 0) @ idf / idf.sum() if len(qt) else np.zeros(n)
    ok = np.fmax(np.nan_to_num(icos, nan=-1), coverage) >= (min_score or -1)
    order = np.lexsort((-(keys & 0xFFFFFFFF), -np.array(at)[first], -score))
    order = order[ok[order]][:limit]
    return [Ranked(sources[keys[i] >> 32], int(keys[i] & 0xFFFFFFFF), float(score[i]), (icos[i], coverage[i], turn[i], window[i], sscore[i], sp[i])) for i in order]
