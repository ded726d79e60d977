"""What all packages share: values and errors, untrusted input, clean-up after failures, telemetry."""
