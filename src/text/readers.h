// SPDX-License-Identifier: Apache-2.0
// Readers of the parts of a tokenizer.json.
#pragma once

#include "text/json_part.h"
#include "text/tokenizer_parts.h"

namespace accelerate::text {

/// Fills `vocabulary` and `model`.
void read_model(const JsonPart& part, TokenizerParts& parts);
void read_normalizer(const JsonPart& part, TokenizerParts& parts);
/// `part` may be null; call it after `read_model`.
void read_pre_tokenizer(const JsonPart& part, TokenizerParts& parts);
void read_post_processor(const JsonPart& part, TokenizerParts& parts);

} // namespace accelerate::text
