// SPDX-License-Identifier: Apache-2.0
// Marks what the shared libraries export; everything else is hidden.
#pragma once

#define ACCELERATE_API __attribute__((visibility("default")))
