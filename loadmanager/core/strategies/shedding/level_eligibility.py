"""Filters and policies for the moves of Level's search, before and after earlier moves."""

from __future__ import annotations

import numpy as np

from loadmanager.core.constraints.filters import (
    FilterCache,
    PlacementQuestion,
    everyone,
    find_anti_affinity_refusal,
    keep_isolated,
    rules_of,
    topics_left,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray, IntArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.level.search_task import SearchMove


class MoveEligibility:
    """Eligibility by the namespace's isolation policy and anti-affinity group.

    Bundles of one class, `classes` (N,), have the same `owners` (K, M). Bundles in an anti-affinity group are `limited`
    (N,), since each move changes eligibility. All are limited if brokers may reach the topic limit; each can take
    `topics_left` (M,) topics after the moves `made`.
    """

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings) -> None:
        bundles = snapshot.bundles
        self._snapshot = snapshot
        self._excluded = settings.shedding_excluded_namespaces
        self._rules = rules_of(settings, "Level")
        self._projection = Projection(snapshot)
        self._answers = FilterCache(self._rules, self._projection, settings)
        self._pending_moves: list[SearchMove] = []
        of_namespace, self._questions = self._kinds()
        owners = [self._answers.allowed(question)[0] for question in self._questions]
        self.owners = np.array(owners, dtype=bool).reshape(len(owners), len(snapshot.brokers))
        groups = snapshot.policies.anti_affinity_groups
        self.classes = of_namespace[bundles.namespace]
        self.limited = np.array([name in groups for name in bundles.namespaces], dtype=bool)[bundles.namespace]
        self.topics: IntArray = bundles.topics.astype(np.int64)
        self.topics_left = topics_left(self._rules, snapshot, settings)

    def may_be_shed(self) -> BoolArray:
        """Return a mask (N,) of bundles whose namespace is not excluded."""
        bundles = self._snapshot.bundles
        excluded = [name in self._excluded for name in bundles.namespaces]
        return ~np.array(excluded, dtype=bool)[bundles.namespace]

    def misplaced(self) -> BoolArray:
        """Return a mask (N,) of bundles whose isolation policy does not allow their broker."""
        assigned = self._snapshot.bundles.assigned
        if not self._snapshot.policies.isolation or not len(assigned):
            return np.zeros(len(assigned), dtype=bool)
        allowed = np.stack([keep_isolated(everyone(question), question) for question in self._questions])
        return np.asarray((assigned >= 0) & ~allowed[self.classes, assigned])

    def may_move(self, moves: tuple[SearchMove, ...]) -> bool:
        """Return True if each of the moves is allowed, given the moves already made."""
        return all(self._may_move(move) for move in moves)

    def made(self, move: SearchMove) -> None:
        self._pending_moves.append(move)
        self.topics_left[move.destination] -= self.topics[move.bundle]

    def _may_move(self, move: SearchMove) -> bool:
        if not self.limited[move.bundle] and self.topics_left[move.destination] >= self.topics[move.bundle]:
            return bool(self.owners[self.classes[move.bundle], move.destination])
        self._update_projection()
        question = self._answers.question(self._namespace_of(move), move.source)
        if find_anti_affinity_refusal(self._rules, question) is not None:
            return False
        return bool(self._answers.allowed(question)[0][move.destination])

    def _update_projection(self) -> None:
        """Add the latest moves to the projection."""
        for move in self._pending_moves:
            self._projection.move(self._namespace_of(move), move.bundle, move.source, move.destination)
        self._pending_moves.clear()

    def _namespace_of(self, move: SearchMove) -> str:
        bundles = self._snapshot.bundles
        return bundles.namespaces[int(bundles.namespace[move.bundle])]

    def _kinds(self) -> tuple[IntArray, list[PlacementQuestion]]:
        """Return the class of each namespace, and a placement question for each class."""
        policies = self._snapshot.policies
        known: dict[tuple[str | None, str | None], int] = {}
        questions: list[PlacementQuestion] = []
        classes = []
        for namespace in self._snapshot.bundles.namespaces:
            policy = policies.find_policy(namespace)
            kind = policy.name if policy else None, policies.find_group(namespace)
            if kind not in known:
                known[kind] = len(questions)
                questions.append(self._answers.question(namespace, None))
            classes.append(known[kind])
        return np.array(classes, dtype=np.int64), questions
