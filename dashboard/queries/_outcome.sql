-- The class of a request, told apart as a reader needs it: a success without content and one whose stream broke off are neither plain
-- successes nor errors.
CASE
        WHEN status <> 'ok' THEN status
        WHEN list_contains(string_split(flags, '; '), 'unfinished stream') THEN 'unfinished'
        WHEN output_tokens = 0 OR list_contains(string_split(flags, '; '), 'zero output') THEN 'zero_output'
        ELSE 'ok'
    END
