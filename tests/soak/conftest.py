from tests.pipeline.conftest import no_ray_without_a_stream

__all__ = ["no_ray_without_a_stream"]  # a fixture of tests/pipeline
