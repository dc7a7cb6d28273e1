"""What a check finds, and the list of all codes. Not here: the checks."""

import dataclasses
from typing import Literal

Severity = Literal["error", "warning", "note"]

CODES: dict[str, tuple[Severity, str]] = {
    # JAX itself
    "E001": ("error", "JAX is not installed"),
    "E002": ("error", "JAX cannot be imported"),
    "E003": ("error", "no backend starts"),
    "E004": ("error", "the backend does not answer"),
    "E005": ("error", "the process of JAX ends"),
    "E006": ("warning", "there is a GPU and JAX runs on the CPU"),
    "E007": ("note", "JAX was not asked"),
    # XLA_FLAGS, and settings that come too late
    "E101": ("error", "a flag is unknown to this jaxlib"),
    "E102": ("error", "a flag has a value that cannot be read"),
    "E103": ("error", "XLA_FLAGS is read as the name of a file"),
    "E104": ("warning", "a flag is given twice"),
    "E105": ("warning", "a setting was made after the backend had started"),
    "E106": ("warning", "a setting may have been made after the backend had started"),
    "E107": ("warning", "XLA does not read the rest of XLA_FLAGS"),
    # names and values of JAX_*
    "E201": ("warning", "the name of a setting is misspelt"),
    "E202": ("note", "nothing reads a setting"),
    "E203": ("warning", "the environment does not set this value"),
    "E204": ("warning", "a setting was made after JAX had read it"),
    "E205": ("error", "JAX refuses the value of a setting"),
    "E206": ("warning", "a setting is deprecated"),
    "E207": ("warning", "a setting of TensorFlow does nothing in JAX"),
    # the memory of GPUs
    "E301": ("error", "the fraction is set twice"),
    "E302": ("warning", "the fraction is set by its old name"),
    "E303": ("error", "the fraction is not a number"),
    "E304": ("error", "the fraction is not between 0 and 1"),
    "E305": ("warning", "preallocation is on, though its value seems to turn it off"),
    "E306": ("warning", "preallocation is off"),
    "E307": ("warning", "a fraction without preallocation reserves nothing"),
    "E308": ("error", "there is no such allocator"),
    "E309": ("error", "the GPU client refuses its settings"),
    "E310": ("warning", "the allocator is for debugging"),
    "E311": ("warning", "the allocator ignores the fraction"),
    "E312": ("warning", "the allocator is cudaMallocAsync"),
    "E313": ("warning", "the fraction leaves others too little, or has too little"),
    "E314": ("warning", "the GPU's memory is shared with the host's"),
    # which GPUs
    "E321": ("warning", "no GPU is visible"),
    "E322": ("error", "a GPU is listed twice"),
    "E323": ("error", "a GPU that is listed is not there"),
    "E324": ("error", "an entry names no GPU"),
    "E325": ("warning", "an index may be another GPU"),
    "E326": ("warning", "several GPUs are visible"),
    "E327": ("warning", "the GPU is not idle"),
    "E328": ("warning", "two lists of devices are applied, one after the other"),
    "E329": ("note", "transfers wait for computation"),
    # the host
    "E401": ("warning", "the host is short of memory"),
    "E402": ("error", "a disk is full"),
    "E403": ("warning", "a disk is nearly full"),
    "E404": ("note", "the working folder is lost at a restart"),
    "E405": ("warning", "a folder is held in memory"),
    "E411": ("note", "a limit does not protect from systemd-oomd"),
    "E412": ("warning", "a cap on swap trades a kill for a stall"),
    # the compilation cache
    "E501": ("error", "the compilation cache is no folder"),
    "E502": ("error", "the compilation cache cannot be written"),
    "E503": ("warning", "the compilation cache has a folder and is off"),
    "E504": ("warning", "programs compiled too fast to be stored"),
    "E505": ("warning", "programs compiled before the cache had a folder"),
    "E506": ("note", "entries are older than jaxlib"),
    "E507": ("warning", "the compilation cache is lost at a restart"),
    "E508": ("warning", "programs were not stored"),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth to know.

    **Attributes:**

    - `code`: stable, such as `"E101"`; the page on `doctor` has a section for each.
    - `severity`: `"error"`, `"warning"` or `"note"`.
    - `where`: the setting and where its value comes from, or the place.
    - `what`: what is the case.
    - `why`: what follows from it.
    - `fix`: a line to paste, or what to do.
    """

    code: str
    severity: Severity
    where: str
    what: str
    why: str
    fix: str


def finding(code: str, where: str, what: str, *, why: str, fix: str) -> Finding:
    """A finding with the severity of its code."""
    return Finding(code, CODES[code][0], where, what, why, fix)
