"""What of ours stands in a manifest that its user wrote: an overlay that was recommended, or our `--config` file. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tabletune.recommendation_file import RecommendationFile, Setting
from tabletune_operator.launch_file import LaunchFile, Reading, read_use, without_file
from tabletune_operator.parts import Template, has_parts, table_digest
from tabletune_operator.target import Target


@dataclass(frozen=True, slots=True)
class Manifest:
    """What of ours stands in a target that we did not roll out."""

    setting: Setting  # the speculative config in its arguments, as they are
    has_parts: bool  # plugin and sidecar
    mark: str | None  # the annotation by which mode ConfigFile has replicas replaced
    reading: Reading  # does it read our file?


def read_manifest(target: Target, template: Template, draft_table: str) -> Manifest:
    """`target` is what was parsed without our parts, `template` the pod template as it is."""
    return Manifest(target.speculation, has_parts(template), table_digest(template), read_use(target, draft_table))


def as_before(target: Target, manifest: Manifest, recommended: RecommendationFile | None, file: LaunchFile | None) -> Target:
    """The target as its user had it before it followed us: that is what is measured and compared, whatever it follows now."""
    if manifest.reading.is_read:
        before = file.before if file is not None else None
        return without_file(target, before if manifest.reading.problem is None else target.speculation)
    if recommended is not None and manifest.setting in recommended.settings:
        return replace(target, speculation=recommended.before)
    return target
