"""What settings cost, as plain arithmetic."""
