// SPDX-License-Identifier: Apache-2.0
// Marks names that this project's other libraries, `accelerate._C`, custom
// engines and tests link to. They may change in every version. Programs use the
// names marked ACCELERATE_API.
#pragma once

#define ACCELERATE_INTERNAL __attribute__((visibility("default")))
