"""The soak's job: `hpd extract` with decoders that answer by hashes, and whose processes can be found."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from hpd_core.spec import DecoderSpec
from pipeline.job import JobSpec, Pool, UnitCaps
from tests.pipeline.fakes import PRODUCT, SPEC, ByteEncoder, HashDecoder, HashDecoders, TitleReader


@dataclass(frozen=True)
class Plan:
    """What a driver has to know. work: local folder in which decoders leave their process ids and count their calls.

    delay: seconds that every call of a decoder takes beside its hashes.
    """

    work: str
    input: str
    output: str
    unit_rows: int
    actors: int
    delay: float

    @property
    def decoders(self) -> SoakDecoders:
        return SoakDecoders(Path(self.work) / "calls.log", delay=self.delay)

    @property
    def actors_folder(self) -> Path:
        return self.decoders.folder

    def job(self) -> JobSpec:
        return JobSpec(
            inputs=(self.input,),
            output=self.output,
            decoder=SPEC,
            reader=TitleReader(),
            schemas=(PRODUCT,),
            encoder_factory=ByteEncoder,
            decoder_factory=self.decoders,
            units=UnitCaps(rows=self.unit_rows),
            pool=Pool(min_size=self.actors, max_size=self.actors, cpus=1.0),
            num_cpus=self.actors + 1,
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class SoakDecoders(HashDecoders):
    """`HashDecoders` whose processes can be found: each leaves an empty file `actors/<process id>`."""

    @property
    def folder(self) -> Path:
        return self.log.parent / "actors"

    def __call__(self, spec: DecoderSpec, device: str, threads: int) -> HashDecoder:
        self.folder.mkdir(exist_ok=True)
        (self.folder / str(os.getpid())).touch()
        return super().__call__(spec, device, threads)
