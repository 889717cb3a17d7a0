// SPDX-License-Identifier: Apache-2.0
// Readers of the parts of a tokenizer.json.
#pragma once

#include "text/json_node.h"
#include "text/tokenizer_components.h"

namespace accelerate::text {

/// Fills `vocabulary` and `model`.
void read_model(const JsonNode& node, TokenizerComponents& components);
void read_normalizer(const JsonNode& node, TokenizerComponents& components);
/// `node` may be null. Call this after `read_model`.
void read_pre_tokenizer(const JsonNode& node, TokenizerComponents& components);
void read_post_processor(const JsonNode& node, TokenizerComponents& components);

} // namespace accelerate::text
