// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace accelerate {

/// Makes torch's dropout operators, and dropout inside of attention, return
/// their input for the rest of the process, in both languages. Ranks draw
/// different masks than a single process, so steps could not be compared.
void turn_dropout_off();

} // namespace accelerate
