# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "not one_of_two", sys.argv[1]]))
