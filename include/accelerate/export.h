// SPDX-License-Identifier: Apache-2.0
// Marks the symbols that the shared libraries export. All others are hidden.
#pragma once

#define ACCELERATE_API __attribute__((visibility("default")))
