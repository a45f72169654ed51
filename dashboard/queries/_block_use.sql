-- What each block that was computed or reused is to the run: docs/metrics.md, recompute and reuse.
CASE
        WHEN hash IS NULL THEN 'unnamed'
        WHEN restored THEN 'reuse_restored'
        WHEN kind <> 'store' THEN CASE WHEN computed_here = 0 THEN 'reuse_unseen' WHEN computed_here = 1 THEN 'reuse_first' ELSE 'reuse_again' END
        WHEN stores_before = 0 THEN 'computed_first'
        WHEN held_before > 0 THEN 'computed_held'
        WHEN own_again THEN 'computed_preempted'
        WHEN stores_here = 0 THEN 'computed_elsewhere'
        ELSE 'computed_lost'
    END
