// SPDX-License-Identifier: Apache-2.0
// Everything that a training loop needs, in one include.
#pragma once

#include "accelerate/accelerator.h"
#include "accelerate/accumulate.h"
#include "accelerate/collectives.h"
#include "accelerate/data_loader.h"
#include "accelerate/ddp.h"
#include "accelerate/error.h"
#include "accelerate/grad_scaler.h"
#include "accelerate/optimizer.h"
#include "accelerate/precision.h"
#include "accelerate/prepared_model.h"
#include "accelerate/process.h"
#include "accelerate/process_group.h"
#include "accelerate/progress_bar.h"
#include "accelerate/random.h"
#include "accelerate/state_dict.h"
#include "accelerate/tree.h"
#include "accelerate/version.h"
