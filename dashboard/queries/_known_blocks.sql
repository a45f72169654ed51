-- The full blocks of each request by content: those of its prompt, then those that its output completed.
SELECT r.request_id, r.conversation_id, r.turn_index, block_index, r.hashes[block_index + 1] AS hash, block_index < r.prompt_blocks AS of_prompt
FROM (
    SELECT
        request_id, conversation_id, turn_index, len(prompt_block_hashes) AS prompt_blocks,
        list_concat(prompt_block_hashes, output_block_hashes) AS hashes,
        unnest(range(len(list_concat(prompt_block_hashes, output_block_hashes)))) AS block_index
    FROM {raw_requests}
    WHERE prompt_block_hashes IS NOT NULL
) r
