// SPDX-License-Identifier: Apache-2.0
#include "training/comm/quiet_log.h"

#include <c10/util/Logging.h>

#include <mutex>

namespace accelerate {
namespace {

// Ranks may be threads, but the log level belongs to the process.
std::mutex mutex;
int depth = 0;
int level = 0;

} // namespace

QuietLog::QuietLog() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (depth++ == 0) {
    level = FLAGS_caffe2_log_level;
    FLAGS_caffe2_log_level =
        level < c10::GLOG_WARNING ? level : c10::GLOG_FATAL;
  }
}

QuietLog::~QuietLog() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (--depth == 0) {
    FLAGS_caffe2_log_level = level;
  }
}

} // namespace accelerate
