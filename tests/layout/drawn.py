"""Layouts of any fields."""

from hypothesis import strategies as st

from weft.layout.spec import AXES, ContextMethod, Layout, PipelineSchedule, Recompute, TensorOverlap

ORDER = st.just(AXES)


def layouts(order=ORDER):
    degrees = st.integers(1, 64)
    return st.builds(
        Layout,
        **dict.fromkeys(("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor"), degrees),
        micro_batch=degrees,
        virtual_stages=st.integers(1, 8),
        schedule=st.sampled_from(PipelineSchedule),
        zero=st.integers(0, 2),
        recompute=st.sampled_from(Recompute),
        recompute_layers=st.integers(0, 40),
        sequence_parallel=st.booleans(),
        context_method=st.sampled_from(ContextMethod),
        overlap_tensor=st.sampled_from(TensorOverlap),
        overlap_reduce=st.booleans(),
        overlap_gather=st.booleans(),
        offload_optimizer=st.booleans(),
        offload_activations=st.booleans(),
        order=order,
    )
