"""Names that mean something in every section of kernels: what is imported, and what is called by name."""

from __future__ import annotations

# what a section imports
IMPORTS = {
    "chunkform.runtime.chunk_kernels.head_major": "by_head",
    "chunkform.runtime.chunk_kernels.decay_gradient": "block_sums boundary_sums suffix_sum",
    "chunkform.runtime.chunk_kernels.decays": (
        "added_sum adds_large_range cumulate cumulate_beside decayed_product decayed_sum diagonal first_large_range from_state "
        "has_small_range large_ranges last_of lasting later_sums log2_of of_reads over_block power reach span sum_of_others "
        "summed sums_of"
    ),
    "chunkform.runtime.chunk_kernels.indexing": "chunk_of place_of segment_of",
    "chunkform.runtime.chunk_kernels.segment_scan": "chained chained_matrix",
    "chunkform.runtime.chunk_kernels.triangular": "inverse",
    "chunkform.runtime.launch.launch": (
        "DTYPES by_launch cdiv choose cotangent each_head launch row_dtype spread steps strides whole with_heads"
    ),
    "chunkform.runtime.chunk_kernels.matrices": "by_matrix outer_sum",
    "chunkform.runtime.chunk_kernels.channel_systems": "channel_solve decayed_channel_solve",
    "chunkform.runtime.chunk_kernels.left_out": "products_left_out",
    "chunkform.runtime.chunk_kernels.segment_maps": "map_of_all",
    "chunkform.runtime.launch.varlen": "INTERVAL",
    "chunkform.runtime.chunk_kernels.segment_tails": "TAIL_STEPS is_zero join_tails tails_of",
    "chunkform.runtime.chunk_kernels.chunk_layout": "GROUP LEVELS chunk_layout segments_for",
    "chunkform.runtime.chunk_kernels.split_precision": "rounded_and_rest rounded_to",
    "chunkform.runtime.chunk_kernels.elementwise_scan": (
        "LONG_SCAN SCAN less_turns logaddexp_at logaddexp_then logaddexp_then_beside maximum_at maximum_then maximum_then_beside "
        "minimum_at minimum_then minimum_then_beside one_after_other rational_at rational_then rational_then_beside "
        "scan_segments scan_stages scan_width scanned times with_those_before"
    ),
    "chunkform.runtime.chunk_kernels.substeps": "of_substep packed_in",
    "chunkform.runtime.chunk_kernels.fused_backward": (
        "aligned apart block_state_adjoint column_partial_sums column_sums in_place may_be_fused over_rows paired_states "
        "row_partial_sums row_sums rows_of stages_of step_state_adjoint store_partial_sums store_sums total_of warps_of"
    ),
    "chunkform.runtime.chunk_kernels.warp_role_blocks": "few_rows inverses on_diagonal small_products small_tiles",
    "chunkform.runtime.chunk_kernels.warp_role_sums": (
        "store_matrices store_pair_sums store_row_sums store_state_products store_sums_of_columns store_sums_of_rows "
        "store_tile_sums"
    ),
    "chunkform.runtime.chunk_kernels.warp_roles": (
        "accumulator barriers begun fence_async_shared gl gluon joined_config launch_fused_with_roles launch_joined "
        "launch_joined_heavy launch_joined_light launch_joined_slight launch_loaded_with_roles launch_with_roles may_join "
        "mbarrier ring_of_numbers ring_of_tiles room swizzled tma warpgroup_mma warpgroup_mma_wait with_roles"
    ),
    "chunkform.runtime.chunk_kernels.placed_tiles": (
        "added_sum_gluon chunk_of_gluon copied_layout copies_awaited copy_begun diagonal_gluon from_start_gluon "
        "from_state_gluon later_sums_gluon launch_placed over_block_gluon place_of_gluon product_awaited stored_layout "
        "to_start_gluon"
    ),
    "chunkform.runtime.op.signature": "OVERWRITE",
    "chunkform.runtime.chunk_kernels.reductions": "pair total",
}
# what is called by name in kernels and in the functions that launch them
RESERVED = frozenset(
    "B T H C DT BLOCK CHUNK GROUP LEVELS ROWS again i_new large_range_from blocks first_block first_row jointly "
    "places_of_checkpoints needs_backward tiles column column_ok program i_ok exchange EVEN EXACT SMALL_RANGE STAGES SUMS "
    "WARPS YIELD APART PRODUCTS READ RESULTS warps identity ends linear read keeps sweep reached edge live tail tails TAIL "
    "tl triton torch i c h b n group programs bh sh t0 at row step last chunks tile flat extent segment first begin stop "
    "count given states constants saved needs cotangents final_cotangents packed layout segments config dtype some length "
    "begins stops starts start late early gradients initial outputs finals found wanted incoming".split()
) | {name for names in IMPORTS.values() for name in names.split()}
