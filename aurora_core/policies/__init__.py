"""The built-in swap policies. Pure: evidence in, verdict out; no clock, no I/O, no torch.

simple.py   always and interval: promote without looking
gate.py     held-out traces: promote a gain that pays its swap
canary.py   a share of the live requests: promote or drop by a sequential test
shadow.py   drafts of live requests that are not used: promote or drop by the same test
guard.py    around every policy: probation, roll back, no speculation where nothing beats it
"""

from aurora_core.policies.canary import CanaryOptions, CanarySwap
from aurora_core.policies.gate import HoldoutGate, HoldoutOptions, gain_lower_bound
from aurora_core.policies.guard import Guard
from aurora_core.policies.shadow import ShadowOptions, ShadowSwap
from aurora_core.policies.simple import AlwaysSwap, IntervalOptions, IntervalSwap

__all__ = [
    "AlwaysSwap",
    "CanaryOptions",
    "CanarySwap",
    "Guard",
    "HoldoutGate",
    "HoldoutOptions",
    "IntervalOptions",
    "IntervalSwap",
    "ShadowOptions",
    "ShadowSwap",
    "gain_lower_bound",
]
