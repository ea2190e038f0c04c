"""The conditions of a DraftTable and every reason that they can have: the one list behind status, display, events and docs.

A reason belongs to one condition, never changes its meaning once shipped, and has an entry in docs/conditions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from tabletune_operator.times import to_time

Status = Literal["True", "False", "Unknown"]

LONGEST_MESSAGE = 300

STAGES = ("Accepted", "Profiled", "Verified", "RolledOut", "Tracking")
"""In the order in which they come true."""
SUMMARIES = ("Ready", "Reconciling", "Stalled")
"""What generic tools read (kstatus); made from the stages."""


class Outlook(StrEnum):
    """What happens next if nobody does anything."""

    GOOD = "Good"  # nothing: this is where it should be
    WORKING = "Working"  # it goes on by itself
    WAITING = "Waiting"  # it goes on by itself when something outside changes
    HUMAN = "Human"  # it does not go on until a person acts
    BEHIND = "Behind"  # an earlier stage decides


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a condition has its status; `state` is the word that `kubectl get` shows when this reason decides."""

    type: str
    status: Status
    name: str
    outlook: Outlook
    state: str


class Accepted:
    """Do spec and target make sense together?"""

    SUPPORTED = Reason("Accepted", "True", "TargetSupported", Outlook.GOOD, "Checking")
    SPEC_NOT_READABLE = Reason("Accepted", "False", "SpecNotReadable", Outlook.HUMAN, "Blocked")
    TARGET_NOT_FOUND = Reason("Accepted", "False", "TargetNotFound", Outlook.HUMAN, "Blocked")
    TARGET_OWNED = Reason("Accepted", "False", "TargetOwned", Outlook.HUMAN, "Blocked")
    KIND_CANNOT = Reason("Accepted", "False", "TargetKindCannot", Outlook.HUMAN, "Blocked")
    ENGINE_TLS = Reason("Accepted", "False", "EngineTLS", Outlook.HUMAN, "Blocked")
    TARGET_TAKEN = Reason("Accepted", "False", "TargetTaken", Outlook.HUMAN, "Blocked")
    WAITING_FOR_TARGET = Reason("Accepted", "Unknown", "WaitingForTarget", Outlook.WAITING, "Checking")
    NO_ENGINE = Reason("Accepted", "False", "NoEngine", Outlook.HUMAN, "Blocked")
    TWO_ENGINES = Reason("Accepted", "False", "TwoEngines", Outlook.HUMAN, "Blocked")
    TARGET_SHELL_STRING = Reason("Accepted", "False", "TargetShellString", Outlook.HUMAN, "Blocked")
    NO_SUCH_CONTAINER = Reason("Accepted", "False", "NoSuchContainer", Outlook.HUMAN, "Blocked")
    PREFILL_ROLE = Reason("Accepted", "False", "PrefillRole", Outlook.HUMAN, "Blocked")
    ARGUMENT_NOT_UNDERSTOOD = Reason("Accepted", "False", "ArgumentNotUnderstood", Outlook.HUMAN, "Blocked")
    ARGUMENT_FROM_ENVIRONMENT = Reason("Accepted", "False", "ArgumentFromEnvironment", Outlook.HUMAN, "Blocked")
    CONFIG_FILE_NOT_READ = Reason("Accepted", "False", "ConfigFileNotRead", Outlook.HUMAN, "Blocked")
    CONFIG_FILE_NOT_UNDERSTOOD = Reason("Accepted", "False", "ConfigFileNotUnderstood", Outlook.HUMAN, "Blocked")
    RECORD_DAMAGED = Reason("Accepted", "False", "RecordDamaged", Outlook.HUMAN, "Blocked")
    NO_DRAFT_LENGTH = Reason("Accepted", "False", "NoDraftLength", Outlook.HUMAN, "Blocked")
    NO_SPECULATIVE_CONFIG = Reason("Accepted", "False", "NoSpeculativeConfig", Outlook.HUMAN, "Blocked")
    DRAFT_LENGTH_TOO_LARGE = Reason("Accepted", "False", "DraftLengthTooLarge", Outlook.HUMAN, "Blocked")
    DATA_PARALLEL = Reason("Accepted", "False", "DataParallel", Outlook.HUMAN, "Blocked")
    METHOD_CANNOT = Reason("Accepted", "False", "MethodCannot", Outlook.HUMAN, "Blocked")
    ENGINE_TOO_OLD = Reason("Accepted", "False", "EngineTooOld", Outlook.HUMAN, "Blocked")
    TABLE_IGNORED = Reason("Accepted", "False", "TableIgnored", Outlook.HUMAN, "Blocked")
    CONFIG_REFUSED = Reason("Accepted", "False", "SpeculativeConfigRefused", Outlook.HUMAN, "Blocked")
    SELECTOR_WOULD_MATCH = Reason("Accepted", "False", "SelectorWouldMatch", Outlook.HUMAN, "Blocked")
    MIXED_GPUS = Reason("Accepted", "False", "MixedGPUs", Outlook.HUMAN, "Blocked")
    PROMPTS_NOT_FOUND = Reason("Accepted", "False", "PromptsNotFound", Outlook.HUMAN, "Blocked")


class Profiled:
    """Is there a profile that is valid for the target as it is?"""

    MEASURED = Reason("Profiled", "True", "Measured", Outlook.GOOD, "Verifying")
    REUSED = Reason("Profiled", "True", "Reused", Outlook.GOOD, "Verifying")
    AWAITS_ACCEPTED = Reason("Profiled", "Unknown", "NotAccepted", Outlook.BEHIND, "Checking")
    STARTING = Reason("Profiled", "False", "Starting", Outlook.WORKING, "Starting")
    PROFILING = Reason("Profiled", "False", "Profiling", Outlook.WORKING, "Profiling")
    STALE = Reason("Profiled", "False", "Stale", Outlook.WORKING, "Starting")
    REPROFILE_ASKED = Reason("Profiled", "False", "ReprofileAsked", Outlook.WORKING, "Starting")
    SPEC_CHANGED = Reason("Profiled", "False", "SpecChanged", Outlook.WORKING, "Starting")
    WAITING_FOR_TARGET = Reason("Profiled", "False", "WaitingForTarget", Outlook.WAITING, "Waiting")
    QUEUED = Reason("Profiled", "False", "Queued", Outlook.WAITING, "Waiting")
    WAITING_FOR_GPU = Reason("Profiled", "False", "WaitingForGPU", Outlook.WAITING, "WaitingForGPU")
    BORROWING = Reason("Profiled", "False", "BorrowingReplica", Outlook.WORKING, "Starting")
    CANNOT_BORROW = Reason("Profiled", "False", "CannotBorrow", Outlook.WAITING, "WaitingForGPU")
    WAITING_FOR_NODE = Reason("Profiled", "False", "WaitingForNode", Outlook.WAITING, "Waiting")
    NO_MATCHING_NODE = Reason("Profiled", "False", "NoMatchingNode", Outlook.WAITING, "Waiting")
    POD_DOES_NOT_START = Reason("Profiled", "False", "PodDoesNotStart", Outlook.WAITING, "Waiting")
    JOB_RETRIES = Reason("Profiled", "False", "JobRetries", Outlook.WORKING, "Starting")
    JOB_STOPPED = Reason("Profiled", "False", "JobStopped", Outlook.WORKING, "Starting")
    JOB_FAILED = Reason("Profiled", "False", "JobFailed", Outlook.HUMAN, "Failed")
    BLOCKED = Reason("Profiled", "False", "Blocked", Outlook.HUMAN, "Blocked")
    SUSPENDED = Reason("Profiled", "False", "Suspended", Outlook.WAITING, "Suspended")
    POLICY_NEVER = Reason("Profiled", "False", "PolicyNever", Outlook.HUMAN, "Blocked")
    CONFIG_MAP_DAMAGED = Reason("Profiled", "False", "ConfigMapDamaged", Outlook.HUMAN, "Blocked")


class Verified:
    """Is it decided, from live measurements, what to run?"""

    TABLE_PAYS = Reason("Verified", "True", "TablePays", Outlook.GOOD, "Verifying")
    FIXED_LENGTH_PAYS = Reason("Verified", "True", "FixedLengthPays", Outlook.GOOD, "Verifying")
    PRESENT_PAYS = Reason("Verified", "True", "PresentPays", Outlook.GOOD, "Verifying")
    NOTHING_GAINED = Reason("Verified", "True", "NothingGained", Outlook.GOOD, "Verifying")
    SPECULATION_LOSES = Reason("Verified", "True", "SpeculationLoses", Outlook.GOOD, "Verifying")
    NOT_DECIDED = Reason("Verified", "False", "NotDecided", Outlook.HUMAN, "Blocked")
    AWAITS_PROFILED = Reason("Verified", "Unknown", "NotProfiled", Outlook.BEHIND, "Checking")


class RolledOut:
    """Does every replica prove that it runs what was decided?"""

    PROVED = Reason("RolledOut", "True", "Proved", Outlook.GOOD, "Tracking")
    SPECULATION_REMOVED = Reason("RolledOut", "True", "SpeculationRemoved", Outlook.GOOD, "Off")
    PRESENT_KEPT = Reason("RolledOut", "True", "PresentKept", Outlook.GOOD, "Kept")
    RECOMMENDED = Reason("RolledOut", "False", "Recommended", Outlook.GOOD, "Recommended")
    APPLIED = Reason("RolledOut", "True", "Applied", Outlook.GOOD, "Tracking")
    RECOMMENDATION_OUTDATED = Reason("RolledOut", "False", "RecommendationOutdated", Outlook.GOOD, "Recommended")
    NOT_PROVABLE = Reason("RolledOut", "Unknown", "NotProvable", Outlook.GOOD, "Applied")
    CONFIG_FILE_NOT_USED = Reason("RolledOut", "False", "ConfigFileNotUsed", Outlook.HUMAN, "Blocked")
    AWAITS_VERIFIED = Reason("RolledOut", "Unknown", "NotVerified", Outlook.BEHIND, "Checking")
    GIVING_BACK = Reason("RolledOut", "False", "GivingBack", Outlook.WORKING, "RollingOut")
    WAITING_FOR_JOB_POD = Reason("RolledOut", "False", "WaitingForJobPod", Outlook.WORKING, "RollingOut")
    ROLLING_OUT = Reason("RolledOut", "False", "RollingOut", Outlook.WORKING, "RollingOut")
    AWAITING_APPROVAL = Reason("RolledOut", "False", "AwaitingApproval", Outlook.WAITING, "AwaitingApproval")
    QUEUED = Reason("RolledOut", "False", "RolloutQueued", Outlook.WAITING, "Waiting")
    SCALING = Reason("RolledOut", "False", "ScalingUnderWay", Outlook.WAITING, "Waiting")
    DISRUPTION_BUDGET = Reason("RolledOut", "False", "DisruptionBudget", Outlook.WAITING, "Waiting")
    ROLL_OUT_NEEDS_GPU = Reason("RolledOut", "False", "RolloutNeedsGPU", Outlook.WAITING, "RollingOut")
    HELD_BACK = Reason("RolledOut", "False", "HeldBack", Outlook.HUMAN, "RollingOut")
    PROVING = Reason("RolledOut", "False", "Proving", Outlook.WORKING, "RollingOut")
    SUSPENDED = Reason("RolledOut", "False", "Suspended", Outlook.WAITING, "Suspended")
    ROLLED_BACK = Reason("RolledOut", "False", "RolledBack", Outlook.HUMAN, "RolledBack")
    WORSE = Reason("RolledOut", "False", "WorseThanBefore", Outlook.HUMAN, "Blocked")
    MANAGED_ELSEWHERE = Reason("RolledOut", "False", "ManagedElsewhere", Outlook.HUMAN, "Blocked")
    TRIED_AGAIN = Reason("RolledOut", "False", "TriedAgainSoon", Outlook.WAITING, "Waiting")
    PUT_BACK = Reason("RolledOut", "False", "PutBack", Outlook.HUMAN, "Drifted")
    DRIFTED = Reason("RolledOut", "False", "Drifted", Outlook.HUMAN, "Drifted")
    NOT_HONOURED = Reason("RolledOut", "False", "NotHonoured", Outlook.HUMAN, "Blocked")
    PLUGIN_INACTIVE = Reason("RolledOut", "False", "PluginInactive", Outlook.HUMAN, "Blocked")
    CANNOT_ROLL_OUT = Reason("RolledOut", "False", "CannotRollOut", Outlook.HUMAN, "Blocked")
    WAITING_FOR_RESTART = Reason("RolledOut", "False", "WaitingForRestart", Outlook.WAITING, "Waiting")
    NOT_ADMITTED = Reason("RolledOut", "False", "NotAdmitted", Outlook.HUMAN, "Blocked")
    ADMISSION_OFF = Reason("RolledOut", "False", "AdmissionOff", Outlook.HUMAN, "Blocked")


class Tracking:
    """Are the sidecars of all replicas heard, and do their tables follow the traffic?"""

    TRACKING = Reason("Tracking", "True", "Tracking", Outlook.GOOD, "Tracking")
    OBSERVING = Reason("Tracking", "True", "Observing", Outlook.GOOD, "Tracking")
    PROFILE_DRIFT = Reason("Tracking", "True", "ProfileDrift", Outlook.GOOD, "Tracking")
    NOTHING_TO_TRACK = Reason("Tracking", "False", "NothingToTrack", Outlook.GOOD, "Off")
    REPLICA_SILENT = Reason("Tracking", "Unknown", "ReplicaSilent", Outlook.WAITING, "Tracking")
    REPLICA_PROBLEM = Reason("Tracking", "False", "ReplicaProblem", Outlook.WAITING, "Tracking")
    NO_REPLICA = Reason("Tracking", "Unknown", "NoReplica", Outlook.WAITING, "Tracking")
    AWAITS_ROLLED_OUT = Reason("Tracking", "Unknown", "NotRolledOut", Outlook.BEHIND, "Checking")


DELETING = "Deleting"
"""Every stage's reason while the DraftTable is being deleted."""
DELETING_REASONS = tuple(Reason(stage, "Unknown", DELETING, Outlook.WORKING, "Deleting") for stage in STAGES)

SETTLED, NOT_STALLED = "Settled", "NotStalled"
"""Reasons of Reconciling=False and Stalled=False; True copies the reason of the stage that decides."""

REASONS: tuple[Reason, ...] = (
    *(
        reason
        for group in (Accepted, Profiled, Verified, RolledOut, Tracking)
        for reason in vars(group).values()
        if isinstance(reason, Reason)
    ),
    *DELETING_REASONS,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One entry of `status.conditions`; `last_transition_time` moves with the status only, as Kubernetes wants it."""

    type: str
    status: Status
    reason: str
    message: str
    observed_generation: int
    last_transition_time: str

    def to_status(self) -> dict[str, object]:
        return {
            "type": self.type,
            "status": self.status,
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": self.last_transition_time,
            "reason": self.reason,
            "message": self.message,
        }


def condition_of(reason: Reason, message: str, generation: int, now: datetime) -> Condition:
    return Condition(reason.type, reason.status, reason.name, clipped(message), generation, to_time(now))


def parse_conditions(status: Mapping[str, object]) -> dict[str, Condition]:
    """The conditions that an object has, by type; entries that lack a field are left out, so that they are written anew."""
    entries = status.get("conditions")
    found: dict[str, Condition] = {}
    for entry in entries if isinstance(entries, list) else ():
        try:
            found[entry["type"]] = Condition(
                entry["type"], entry["status"], entry["reason"], entry["message"], entry["observedGeneration"], entry["lastTransitionTime"]
            )
        except KeyError:
            continue
    return found


def keep_transition_times(new: Iterable[Condition], old: Mapping[str, Condition]) -> tuple[Condition, ...]:
    """The new conditions, each with the old transition time where its status is the same."""
    return tuple(
        replace(c, last_transition_time=old[c.type].last_transition_time) if c.type in old and old[c.type].status == c.status else c
        for c in new
    )


def clipped(message: str, longest: int = LONGEST_MESSAGE) -> str:
    return message if len(message) <= longest else message[: longest - 1] + "…"


def short(name: str, longest: int = 48) -> str:
    """A name for a message: its middle is left out when it is too long, for both ends tell names apart."""
    if len(name) <= longest:
        return name
    tail = longest // 2
    return f"{name[: longest - tail - 1]}…{name[-tail:]}"
